"""Late results: nothing is released while a launched step still touches it, whenever a request ends."""

from __future__ import annotations

import random

import pytest
from hash_model import prompt
from scheduler_rig import Rig

from engine.batch import Mode
from engine.errors import InternalError
from engine.params import SamplingParams
from engine.request import Request, State, expand
from engine.scheduling.roster import Roster


def short_work(rig: Rig, count: int) -> None:
    rng = random.Random(5)
    for i in range(count):
        stop = rng.choice((None, 97, 98, 99))
        rig.submit(
            prompt(rng.randint(1, 9), i),
            max_tokens=rng.randint(1, 8),
            stop_token_ids=() if stop is None else (stop,),
        )


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("width", [1, 4])
def test_short_outputs_in_a_tiny_pool(lag: int, width: int) -> None:
    rig = Rig(page_size=2, pages=24, max_context=32, width=width, lag=lag, max_running=4, headroom=0)
    short_work(rig, 64)
    rig.drain()
    rig.verify()
    rig.assert_idle()
    assert (rig.metrics.overshoot_tokens > 0) == (lag == 1), "the late step ran and was dropped"


@pytest.mark.parametrize("width", [1, 4])
def test_rows_are_recycled_behind_the_fence(width: int) -> None:
    rig = Rig(page_size=4, max_running=2, width=width, lag=1)
    for i in range(200):
        rig.submit(prompt(6, i), max_tokens=1 + i % 2, stop_token_ids=(97,))
    rig.drain()
    rig.verify()
    rig.assert_idle()
    assert {row for step in rig.device.steps for row in step.rows} == {1, 2}


def test_releasing_without_the_fence_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that the two tests above can fail."""

    def leave_now(self: Roster, request: Request) -> bool:
        self._release(request)
        return True

    monkeypatch.setattr(Roster, "_leave", leave_now)
    rig = Rig(page_size=2, pages=24, max_context=32, lag=1, max_running=4, headroom=0)
    short_work(rig, 64)
    with pytest.raises((AssertionError, InternalError)):
        rig.drain()


def test_a_late_finish_is_released_by_the_next_result() -> None:
    """EOS in step n is seen when n is applied; step n + 1 already contains the row and keeps it."""
    probe = Rig(lag=0)
    first = probe.submit(prompt(9), max_tokens=12)
    probe.drain()
    stop = first.output_ids[3]
    cut = first.output_ids.index(stop) + 1
    rig = Rig(lag=1, page_size=4)
    request = rig.submit(prompt(9), max_tokens=12, stop_token_ids=(stop,))
    while not request.finished:
        rig.turn()
    ledger = rig.scheduler.ledger
    assert rig.scheduler._roster.leaving == [request]
    assert ledger.own(request) > 0
    rig.turn()
    rig.assert_idle()
    assert rig.metrics.overshoot_tokens == 1
    assert len(request.output_ids) == cut
    assert ledger.cache.cached == (9 + cut - 1) // 4, "only committed whole pages enter the cache"


def stage(rig: Rig, request: Request) -> str:
    if request.state in (State.PREFILL, State.RUNNING) and request.last_step > rig.scheduler._roster.applied:
        return request.state.value + " in flight"
    return request.state.value


@pytest.mark.parametrize("lag", [0, 1])
def test_cancel_at_every_stage(lag: int) -> None:
    seen = set()
    for after in range(30):
        rig = Rig(page_size=4, pages=40, chunk_tokens=8, max_running=3, lag=lag, width=2)
        targets = [rig.submit(prompt(30, i), max_tokens=9, listener=i % 2 == 0) for i in range(5)]
        others = [rig.submit(prompt(11, 20 + i), max_tokens=9) for i in range(3)]
        for _ in range(after):
            rig.turn()
        alive = {r.id for r in targets if not r.finished}
        seen |= {stage(rig, r) for r in targets}
        assert {r.id for r in targets if rig.scheduler.cancel(r.id)} == alive
        rig.scheduler.check()
        rig.drain()
        rig.verify()
        rig.assert_idle()
        assert {e.request_id for e in rig.events if e.finish_reason == "cancelled"} == alive
        assert all(r.finish_reason == "length" for r in others)
        assert not any(rig.scheduler.cancel(r.id) for r in rig.requests), "finished ones cannot be cancelled"
    in_flight = {"prefill in flight", "running in flight"} if lag else {"prefill", "running"}
    assert in_flight | {"waiting", "finished"} <= seen


def test_cancel_ends_every_sample() -> None:
    rig = Rig()
    samples = expand("q", prompt(9), SamplingParams(n=3, max_tokens=20), seed=1)
    for request in samples:
        rig.add(request)
    rig.turn()
    assert rig.scheduler.cancel("q")
    assert {r.finish_reason for r in samples} == {"cancelled"}
    rig.drain()
    rig.assert_idle()


def test_500_cancels_under_load() -> None:
    rng = random.Random(1)
    rig = Rig(page_size=4, pages=60, width=4, lag=1, max_running=8, headroom=4, max_context=64)
    cancelled = 0
    while cancelled < 500:
        if len(rig.scheduler._roster.room) < 10:
            rig.submit(prompt(rng.randint(1, 30), len(rig.requests)), max_tokens=30)
        cancelled += rig.scheduler.cancel(rng.choice(rig.requests[-14:]).id)
        rig.turn()
    rig.drain()
    rig.verify()
    rig.assert_idle()


def test_a_cancelled_prefill_leaves_only_written_pages_in_the_cache() -> None:
    rig = Rig(page_size=4, chunk_tokens=8, lag=1)
    request = rig.submit(prompt(32), max_tokens=5)
    rig.turn()
    rig.turn()  # chunks 1 and 2 are launched, 1 is applied
    assert [s.mode for s in rig.device.steps] == [Mode.EXTEND] * 2
    rig.scheduler.cancel(request.id)
    rig.drain()
    assert rig.scheduler.ledger.cache.cached == 2
    again = rig.submit(prompt(32), max_tokens=5)
    rig.drain()
    rig.verify()
    assert again.cached_tokens == 8
