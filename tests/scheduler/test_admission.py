"""Who runs and in which order: policies, nobody starves; what can never run is refused with the way out."""

from __future__ import annotations

import pytest
from hash_model import prompt
from scheduler_rig import Rig

from engine.errors import UserError
from engine.params import SamplingParams
from engine.request import Request


def test_a_large_request_is_not_overtaken_forever() -> None:
    rig = Rig(page_size=4, pages=20, max_context=80, headroom=0, max_running=8)
    for i in range(4):
        rig.submit(prompt(8, i), max_tokens=20)
    rig.turn()
    large = rig.submit(prompt(50, 9), max_tokens=20)
    small = [rig.submit(prompt(4, 20 + i), max_tokens=20) for i in range(20)]
    rig.drain()
    rig.verify()
    assert large.token_times[0] <= min(r.token_times[0] for r in small)


@pytest.mark.parametrize("policy", ["fcfs", "longest_prefix"])
def test_policies_order_the_queue(policy: str) -> None:
    rig = Rig(policy=policy, max_running=1, page_size=4)
    base = prompt(40, 1)
    rig.submit(base, max_tokens=2)
    rig.drain()
    stranger = rig.submit(prompt(30, 2), max_tokens=2)
    short = rig.submit(base[:8] + prompt(9, 3), max_tokens=2)
    long = rig.submit(base[:36] + prompt(9, 4), max_tokens=2)
    rig.drain()
    order = sorted((stranger, short, long), key=lambda r: r.token_times[0])
    assert order == ([stranger, short, long] if policy == "fcfs" else [long, short, stranger])


def test_longest_prefix_starves_nobody() -> None:
    rig = Rig(policy="longest_prefix", max_running=1, page_size=4, aging=12)
    base = prompt(40, 1)
    rig.submit(base, max_tokens=2)
    rig.drain()
    rig.submit(base[:36] + prompt(3, 2), max_tokens=2)
    stranger = rig.submit(prompt(30, 3), max_tokens=2)
    for i in range(60):
        rig.submit(base[:36] + prompt(3, 10 + i), max_tokens=2)
        rig.turn()
    assert stranger.finished


def test_a_request_that_fills_the_pool_alone_runs() -> None:
    rig = Rig(page_size=1, pages=59, max_context=60, width=1)
    rig.submit(prompt(30), max_tokens=None)
    rig.submit(prompt(30, 1), max_tokens=None)
    rig.drain()
    rig.verify()
    assert rig.scheduler.ledger.total == 59


def test_a_pool_that_drafts_outgrow_is_not_blamed_on_the_answer() -> None:
    rig = Rig(page_size=1, pages=60, max_context=60, width=32)
    with pytest.raises(UserError, match=r"32 of them for a decode step and its drafts.*draft fewer tokens"):
        rig.submit(prompt(20), max_tokens=12)
    rig = Rig(page_size=1, pages=20, max_context=60, width=1)
    with pytest.raises(UserError, match=r"raise cache\.tokens, or lower sampling\.max_tokens"):
        rig.submit(prompt(20), max_tokens=12)


REFUSALS = [
    (prompt(0), {}, "prompt .* is empty"),
    (prompt(60), {}, r"60 tokens, cache\.max_context=60 .* raise cache\.max_context"),
    (prompt(20), {"max_tokens": 35}, r"20 tokens and up to 35 .* the pool has 40: raise cache\.tokens"),
]


@pytest.mark.parametrize(("ids", "params", "message"), REFUSALS)
def test_what_can_never_run_is_refused_with_the_way_out(ids, params, message) -> None:  # type: ignore[no-untyped-def]
    rig = Rig(page_size=4, pages=10, max_context=60)
    good = rig.submit(prompt(10), max_tokens=4)
    with pytest.raises(UserError, match=message):
        rig.scheduler.add(Request("bad", ids, SamplingParams(**params)))
    rig.drain()
    rig.verify()
    rig.assert_idle()
    assert good.finish_reason == "length"
    assert not rig.scheduler.cancel("bad")


def test_a_full_queue_and_a_used_id_are_refused() -> None:
    rig = Rig(max_waiting=2)
    rig.submit(prompt(5), max_tokens=4)
    with pytest.raises(UserError, match="'r0' is running already"):
        rig.scheduler.add(Request("r0", prompt(5), SamplingParams()))
    rig.submit(prompt(5), max_tokens=4)
    with pytest.raises(UserError, match=r"scheduler\.max_waiting=2"):
        rig.submit(prompt(5), max_tokens=4)
    rig.drain()
    assert rig.add(Request("r0", prompt(5), SamplingParams(max_tokens=1))).id == "r0", "free again"
