"""Step costs: measured by real steps that leave no trace, kept in the user's cache, recorded and replayed."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from dependency_injector.providers import Object
from support.drafters import Scripted, ScriptedTree
from support.engines import TINY, make

from engine.calibrate import ROUNDS, measure
from engine.compose import compose
from engine.container import EngineContainer
from engine.errors import UserError
from engine.models.source import silent
from engine.params import SamplingParams
from engine.step_costs import as_document, cached_file, costs_from, from_document
from speculative.base import DraftTree, DraftView, SpecPlan
from speculative.width import StepCosts

TABLE = StepCosts({(1, 1): 0.01, (1, 3): 0.02, (4, 1): 0.02, (4, 3): 0.05}, {1: 0.001, 4: 0.002})


class Clock:
    """Time that passes only where a step is run: a step of b requests and width w takes b * w."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps: list[tuple[int, int, bool]] = []

    def __call__(self) -> float:
        return self.now

    def step(self, batch: int, width: int, resume: bool) -> float:
        self.steps.append((batch, width, resume))
        self.now += batch * width + 10 * resume
        return batch * width + 10.0 * resume


@pytest.mark.parametrize("resumes", [False, True])
def test_every_width_at_as_many_batches_as_the_time_allows(resumes: bool) -> None:
    clock = Clock()
    costs = measure(clock.step, (2, 4), 8, resumes=resumes, progress=silent, limit=1e9, clock=clock)
    assert dict(costs.seconds) == {(b, w): b * w for b in (1, 2, 4, 8) for w in (1, 2, 4)}
    assert dict(costs.resume) == (dict.fromkeys((1, 2, 4, 8), 10.0) if resumes else {})
    assert len(clock.steps) == 4 * (ROUNDS + 1) * (3 + resumes)


@pytest.mark.parametrize("limit", [0.0, 50.0, 100.0, 400.0])
def test_the_time_limit_holds_once_the_smallest_batch_is_known(limit: float) -> None:
    clock = Clock()
    costs = measure(clock.step, (2, 4), 64, resumes=False, progress=silent, limit=limit, clock=clock)
    assert {(1, 1), (1, 2), (1, 4)} <= set(costs.seconds)
    assert clock.now <= max(limit * 1.5, 7 * 2)
    assert all(dict(costs.seconds)[key] == key[0] * key[1] for key in costs.seconds)
    assert len(costs.seconds) == 3 or limit > 0


def test_a_table_reads_back_as_it_was() -> None:
    assert from_document(json.loads(json.dumps(as_document(TABLE)))) == TABLE


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        {"seconds": [[1, 1]], "resume": []},
        {"seconds": [[1, 1, 0.1], [1, 2, 0.2], [2, 1, 0.1]], "resume": []},
        {"seconds": [[1, 2, 0.1]], "resume": []},
        {"seconds": [[1, 1, -0.1]], "resume": []},
        {"seconds": [[1, 1, float("nan")]], "resume": []},
        {"seconds": [[1, 1, 0.1]], "resume": [[1, float("inf")]]},
        {"seconds": [[float("inf"), 1, 0.1]], "resume": []},
        {"seconds": [[0, 1, 0.1]], "resume": []},
        {"seconds": [[1, 1, 0.1], [1, 0, 0.1]], "resume": []},
        {"seconds": [[1, 1, 0.1]], "resume": [[0, 0.1]]},
    ],
)
def test_what_is_no_table_is_refused(document: Any) -> None:
    with pytest.raises(ValueError, match="it "):
        from_document(document)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_measured_once_then_cached_by_circumstances(cache: Path) -> None:
    calls = []
    take = lambda: calls.append(1) or TABLE  # noqa: E731
    for key in ({"threads": 1}, {"threads": 1}, {"threads": 2}):
        assert costs_from("cached", key, (1, 3), take) == TABLE
    assert len(calls) == 2
    costs_from("measure", {"threads": 1}, (1, 3), take)
    assert len(calls) == 3
    assert cached_file({"threads": 1}).is_relative_to(cache)
    assert not list(cache.rglob("*.partial"))


@pytest.mark.parametrize(
    "damage", ["", "{", '{"seconds": [[1, 1, 0.1]], "resume": []}', "\x00\x01", "[" * 100_000]
)
def test_a_damaged_or_lacking_cache_is_measured_again_with_a_warning(
    cache: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = cached_file({})
    place.parent.mkdir(parents=True)
    place.write_text(damage)
    with caplog.at_level(logging.WARNING, "syncless"):
        assert costs_from("cached", {}, (1, 3), lambda: TABLE) == TABLE
    assert "measured again" in caplog.text
    assert from_document(json.loads(place.read_text())) == TABLE


def test_a_cache_that_cannot_be_written_costs_a_warning_only(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.write_text("a file where a folder is needed")
    with caplog.at_level(logging.WARNING, "syncless"):
        assert costs_from("cached", {}, (1, 3), lambda: TABLE) == TABLE
    assert "cannot be kept" in caplog.text


def test_a_given_file_has_to_be_there_and_to_hold_the_widths(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(as_document(TABLE)))
    never = lambda: pytest.fail("nothing is measured")  # noqa: E731
    assert costs_from(str(file), {}, (1, 3), never) == TABLE
    with pytest.raises(UserError, match=r"step_costs=.*width 4, 5.*step_costs=cached"):
        costs_from(str(file), {}, (1, 3, 4, 5), never)
    with pytest.raises(UserError, match="No such file"):
        costs_from(str(tmp_path / "absent.json"), {}, (1,), never)


class Measured(Scripted):
    """A drafter whose policy asks for costs; its steps write to its relay."""

    def __init__(self, *, drafts: int = 2) -> None:
        super().__init__({}, 512, drafts=drafts, script="wrong")
        self.plan = SpecPlan(width=drafts + 1, measures=(1, 2, drafts + 1))
        self.seen: list[tuple[int, int, bool]] = []

    def propose(self, view: DraftView) -> DraftTree:
        self.seen.append((len(view.rows), view.width, view.resume))
        tree = super().propose(view)
        return DraftTree(tree.tokens[:, : view.width], tree.parent[:, : view.width])


class MeasuredTree(ScriptedTree):
    """The same with a tree, whose accepted KV is moved."""

    def __init__(self) -> None:
        super().__init__({}, 512, drafts=2, script="wrong")
        self.plan = SpecPlan(width=5, tree=True, measures=(1, 5))

    def propose(self, view: DraftView) -> DraftTree:
        tree = super().propose(view)
        return DraftTree(tree.tokens[:, : view.width], tree.parent[:, : view.width])


def container(drafter: Scripted, *overrides: str) -> EngineContainer:
    made = EngineContainer()
    made.config.from_dict(dict(compose([*TINY, "step_costs=measure", *overrides]).cfg))
    made.speculator.override(Object(drafter))
    made.plan.override(Object(drafter.plan))
    return made


@pytest.mark.parametrize("overrides", [(), ("overlap.debug=true",), ("cache.page_size=1",)])
@pytest.mark.parametrize("drafter", [Measured, MeasuredTree])
def test_measuring_leaves_no_trace(cache: Path, drafter: Any, overrides: tuple[str, ...]) -> None:
    made = container(drafter(), "scheduler.max_running=3", *overrides)
    table, pool = made.table(), made.pool()
    tensors = [table.tokens, table.seq_lens, table.page_table, *table.relay.values()]
    tensors += [side for layer in pool.layers for side in (layer.k, layer.v)]
    tensors += [value for value in vars(table.columns).values() if isinstance(value, torch.Tensor)]
    before = [tensor.clone() for tensor in tensors]
    costs = made.costs()
    assert {batch for batch, _ in costs.seconds} <= {1, 2}
    assert all(cost > 0 for cost in costs.seconds.values())
    for tensor, old in zip(tensors, before, strict=True):
        assert torch.equal(tensor, old)


def test_the_steps_that_are_measured_are_real_ones(cache: Path) -> None:
    drafter = Measured()
    made = container(drafter, "scheduler.max_running=1")
    made.costs()
    assert set(drafter.seen) == {(1, 1, False), (1, 2, False), (1, 3, False)}
    assert len(drafter.accepted) == len(drafter.seen), "what the drafter learns is part of a step"


def test_an_algorithm_that_asks_for_no_costs_gets_none(cache: Path) -> None:
    with make(*TINY) as llm:
        assert llm.step_costs is None
    assert not cache.exists()


def test_outputs_do_not_change_by_measuring(cache: Path) -> None:
    prompts, params = [[5, 6, 7], [9, 8, 7, 6]], SamplingParams(max_tokens=12, ignore_eos=True)
    with make(*TINY) as llm:
        plain = [o.completions[0].token_ids for o in llm.generate(prompts, params)]
    with make(*TINY, "step_costs=measure", parts={"speculator": Measured()}) as llm:
        assert llm.step_costs is not None
        assert [o.completions[0].token_ids for o in llm.generate(prompts, params)] == plain
        llm.check()
