"""How a device's memory is divided: numbers by hand, and what a user is told when something does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.engines import TINY, make

from engine import budget
from engine.budget import Wanted, divide
from engine.compose import compose
from engine.errors import UserError
from engine.footprints import Passes
from engine.memory import MemoryItem, MemoryPlan
from engine.pool_size import (
    CPU_POOL_BYTES,
    CPU_POOL_TOKENS,
    MARGIN_BYTES,
    MARGIN_SHARE,
    Free,
    Owned,
    auto_context,
    cpu_tokens,
    free_tokens,
)

GIB = 1 << 30


@pytest.mark.parametrize(
    ("context", "running", "per_token", "expected"),
    [
        (8192, 64, 23040, CPU_POOL_BYTES // 23040),
        (8192, 1, 23040, 8192),  # no more than the rows can use
        (131072, 64, 131072, 131072),  # one full context fits, whatever it takes
        (4096, 64, 768, CPU_POOL_TOKENS),
    ],
)
def test_automatic_pool_of_a_cpu(context: int, running: int, per_token: int, expected: int) -> None:
    assert cpu_tokens(context, running, per_token) == expected


@pytest.mark.parametrize(("asked", "expected"), [("auto", 8192), (100, 100), (9000, 8192)])
def test_automatic_context(asked: int | str, expected: int) -> None:
    assert auto_context(asked, 8192) == expected


def test_a_gpu_pool_is_what_is_left_beside_the_rest() -> None:
    plan = MemoryPlan((MemoryItem("weights", GIB, "", beside=False), MemoryItem("workspace", 1 << 20, "")))
    free = Free((1 << 20) + 1000 * 64, "a GPU")
    assert free_tokens(free, plan, 64, 16) == (1000 // 16 - 1) * 16  # a page of it is padding
    assert free_tokens(Free(1 << 19, "a GPU"), plan, 64, 16) == 0


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize(("width", "draft_slots"), [(1, 0), (5, 0), (2, 9)])
def test_the_longest_request_of_a_pool(page_size: int, width: int, draft_slots: int) -> None:
    owned = Owned(page_size, width, draft_slots)
    for tokens in range(64, 400, 7):
        longest, whole = owned.longest(tokens), tokens // page_size * page_size
        assert owned.slots(longest) <= whole
        assert owned.slots(longest + 1) > whole or owned.slots(longest + page_size) > whole


# -- a GPU that is not there: the same arithmetic on figures given


def want(*overrides: str) -> Wanted:
    """A tiny engine's needs, as if it were on a GPU."""
    with make(*TINY, "sampling.max_tokens=16", *overrides) as llm:
        found: Wanted = llm._container.wanted()
    return found


def gpu(free: int) -> Free:
    return Free(free, "a GPU")


def room(asked: Wanted, more: int) -> Free:
    """Enough for everything but the pool, and `more`."""
    least = asked.plan_for(0, 4096).beside + more
    return gpu(round((least + MARGIN_BYTES) / (1 - MARGIN_SHARE)) + 2)


def test_all_rows_in_full_are_enough() -> None:
    asked = want("scheduler.max_running=3", "cache.max_context=100")
    plan = divide(asked, gpu(20 * GIB))
    assert plan.sizes.pages * 16 == 3 * 112
    assert plan.sizes.context == 100
    assert {item.name: item.bytes for item in plan.plan.items}["margin"] >= MARGIN_BYTES


def test_the_pool_and_all_else_are_no_more_than_what_is_free() -> None:
    asked = want("scheduler.max_running=64", "cache.max_context=4096")
    free = room(asked, 50 << 20)
    plan = divide(asked, free).plan
    taken = sum(item.bytes for item in plan.items if item.name != "weights")
    assert taken <= free.bytes < taken + 16 * asked.per_token + (1 << 10)


def test_an_automatic_context_is_what_the_pool_holds(caplog: pytest.LogCaptureFixture) -> None:
    asked = want("scheduler.max_running=4")
    few = 40 * asked.per_token * 16
    plan = divide(asked, room(asked, few))
    assert plan.sizes.context == plan.sizes.pages * 16 == 39 * 16
    assert "cache.max_context=auto: the KV pool holds requests of 624 tokens" in caplog.text


def test_a_context_that_does_not_fit_is_refused_with_the_one_that_does() -> None:
    asked = want("cache.max_context=4096")
    few = 40 * asked.per_token * 16
    free = room(asked, few)
    with pytest.raises(UserError, match=r"cache\.max_context=4096 .*one request.*use cache\.max_context=624"):
        divide(asked, free)
    shorter = replace(asked, cache=replace(asked.cache, max_context=624))
    shorter = replace(shorter, sizes=replace(asked.sizes, context=624))
    assert divide(shorter, free).sizes.context == 624


def test_a_pool_that_does_not_fit_is_refused_with_the_one_that_does() -> None:
    asked = want("cache.tokens=1000000", "cache.max_context=4096")
    few = 5000 * asked.per_token
    free = room(asked, few)
    with pytest.raises(
        UserError, match=r"cache\.tokens=1000000 does not fit: a GPU has .* cache\.tokens=4976"
    ):
        divide(asked, free)


def test_no_room_at_all_names_what_to_make_smaller() -> None:
    with pytest.raises(
        UserError, match=r"cache\.tokens=auto finds no room.*scheduler\.max_running.*smaller model"
    ):
        divide(want(), gpu(1 << 20))


def test_the_worst_case_of_a_reference_backend_leaves_room_for_a_pool() -> None:
    """attention=torch gathers padded keys; how much depends on how unlike the lengths are."""
    asked = want()
    greedy = replace(asked, sizes=replace(asked.sizes, attention=1 << 50))
    plan = divide(greedy, gpu(8 * GIB)).plan
    assert {item.name: item.bytes for item in plan.items}["attention workspace"] == 2 * GIB


def test_the_device_is_asked_once_nothing_but_weights_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The container divides what is free before pool, table and graphs exist."""
    seen: list[str] = []

    def looked(want: Wanted, on: torch.device) -> budget.Budget:
        seen.append("asked")
        return budget._on_cpu(want)

    monkeypatch.setattr(budget, "budget", looked)
    assert seen == []
    with make(*TINY) as llm:
        sizes = llm._container.sizes()
        assert llm._container.pool().slots == (sizes.pages + 1) * sizes.page_size


def test_explain_and_engine_plan_alike() -> None:
    from engine.explain import explain

    overrides = (*TINY, "scheduler.max_running=5", "cache.tokens=2048")
    shown = explain(compose(overrides)).plan
    assert shown is not None
    with make(*overrides) as llm:
        assert llm.memory_plan == shown
        assert llm._container.wanted().sizes.passes == Passes(5, 1, 2048)
