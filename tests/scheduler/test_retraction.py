"""When pages run out: the cache yields, then the latest request; everybody finishes with unchanged output."""

from __future__ import annotations

import pytest
from hash_model import prompt
from scheduler_rig import Rig

from engine.errors import InternalError
from engine.request import State
from engine.scheduling.growth import PageGrowth
from engine.scheduling.reservation import Reservation


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(("width", "drafter"), [(1, "wrong"), (4, "wrong"), (4, "random"), (4, "right")])
def test_many_requests_in_a_small_pool(lag: int, width: int, drafter: str) -> None:
    """200 requests of 32 + 64 tokens, pages for about 30% of those that may run at once."""
    rig = Rig(
        page_size=4, pages=16 * 24 * 3 // 10, max_context=100, width=width, lag=lag, drafter=drafter,
        max_running=16, headroom=8,
    )  # fmt: skip
    for i in range(200):
        rig.submit(prompt(32, i), max_tokens=64)
    rig.drain()
    rig.verify()
    rig.assert_idle()
    assert rig.metrics.retractions > 0
    assert rig.metrics.finished_requests == 200


def test_256_requests_with_room_for_40() -> None:
    rig = Rig(page_size=4, pages=40 * 9, max_context=64, max_running=256, headroom=4, chunk_tokens=512)
    base = prompt(12, 1)
    for i in range(256):
        rig.submit(base + prompt(4, i), max_tokens=20)
    rig.drain()
    rig.verify()
    rig.assert_idle()
    assert rig.metrics.retractions > 0


def test_a_retracted_request_resumes_with_its_own_positions() -> None:
    rig = Rig(page_size=4, pages=16, max_context=60, headroom=0, max_running=4)
    for i in range(3):
        rig.submit(prompt(10, i), max_tokens=24, temperature=1.0)
    rig.drain()
    rig.verify()
    again = [new for step in rig.device.steps for new in step.new_rows if len(new.tokens) > new.prompt_len]
    assert again, "nobody was retracted"
    for new in again:
        request = next(r for r in rig.requests if r.prompt_ids.tolist() == list(new.tokens[:10]))
        known = list(new.tokens[10:])
        assert new.prompt_len == 10, "the original prompt: penalties and positions do not move"
        assert known == request.output_ids[: len(known)]
        assert new.sampling == request.sampling, "same key, same lengths"


def test_the_latest_yields_and_the_oldest_never() -> None:
    rig = Rig(page_size=4, pages=18, max_context=64, headroom=0, max_running=4)
    requests = [rig.submit(prompt(12, i), max_tokens=30) for i in range(4)]
    admissions: list[int] = []
    while rig.loop.has_work():
        rig.turn()
    for step in rig.device.steps:
        for new in step.new_rows:
            admissions.append(
                next(r.arrival for r in requests if list(r.prompt_ids) == list(new.tokens[:12]))
            )
    assert admissions.count(1) == 1
    assert admissions.count(4) >= 2
    ends = [max(r.token_times) for r in requests]
    assert ends[0] == min(ends)


@pytest.mark.parametrize("lag", [0, 1])
def test_nobody_is_retracted_for_pages_that_are_on_their_way(lag: int) -> None:
    rig = Rig(page_size=4, pages=36, max_context=64, headroom=0, max_running=8, lag=lag)
    for i in range(8):
        rig.submit(prompt(12, i), max_tokens=30)
    while not rig.metrics.retractions:
        rig.turn()
    assert rig.metrics.retractions <= 2, "eight pages were missing at most, each victim gives four or more"
    rig.drain()
    rig.verify()


def test_eviction_comes_before_retraction() -> None:
    rig = Rig(page_size=4, pages=20, max_context=64, headroom=0)
    rig.submit(prompt(40, 1), max_tokens=2)
    rig.drain()
    rig.submit(prompt(20, 2), max_tokens=30)
    rig.drain()
    rig.verify()
    assert rig.metrics.retractions == 0
    assert rig.metrics.evicted_pages > 0


def test_headroom_avoids_retractions() -> None:
    def retractions(headroom: int) -> int:
        rig = Rig(page_size=4, pages=60, max_context=64, headroom=headroom, max_running=32)
        for i in range(40):
            rig.submit(prompt(12, i), max_tokens=30)
        rig.drain()
        rig.verify()
        return rig.metrics.retractions

    assert retractions(30) == 0 < retractions(0)


def test_a_retracted_request_takes_its_last_result_first() -> None:
    """Until then it may be cancelled; with it, it may end, or goes to wait with one run more."""
    after = set()
    for seed in range(40):
        rig = Rig(page_size=2, pages=26, max_context=40, headroom=0, width=3, seed=seed, max_running=6)
        requests = [rig.submit(prompt(5, seed * 10 + i), max_tokens=20, stop=("ab", "ca")) for i in range(6)]
        previous = None
        while rig.scheduler.has_work():
            step = rig.scheduler.schedule()
            handle = None if step is None else rig.device.launch(step)
            gone = [(r, len(r.output_ids)) for r in requests if r.state is State.RETRACTED]
            if seed % 3 == 0:
                gone = [(r, n) for r, n in gone if rig.scheduler.cancel(r.id)]
            if previous is not None:
                rig.events += rig.scheduler.apply(previous.step, rig.device.resolve(previous))
            previous = handle
            rig.scheduler.check()
            after |= {(r.finish_reason or r.state.value, len(r.output_ids) > n) for r, n in gone}
        rig.verify()
        rig.assert_idle()
    assert {("cancelled", False), ("stop", True), ("waiting", True)} <= after


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("draft_slots", [0, 3, 11])
@pytest.mark.parametrize("lag", [0, 1])
def test_worst_case_is_enough_and_no_more_than_a_step_too_much(
    width: int, draft_slots: int, lag: int
) -> None:
    """A pool of exactly the worst case serves the longest request, whatever is accepted."""
    worst = Reservation(width, draft_slots).worst(50)
    for drafter in ("right", "wrong", "random"):
        rig = Rig(
            page_size=1, pages=worst, max_context=50, width=width, draft_slots=draft_slots, lag=lag,
            drafter=drafter,
        )  # fmt: skip
        for i in range(2):
            rig.submit(prompt(20, i), max_tokens=None)
        rig.drain()
        rig.verify()


def test_counting_one_token_instead_of_the_width_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake that K10 reports, made on purpose: the device has to see it."""
    monkeypatch.setattr(Reservation, "need", property(lambda self: 1))
    rig = Rig(page_size=1, width=4, drafter="right")
    rig.submit(prompt(9), max_tokens=20)
    with pytest.raises(AssertionError, match="has no page"):
        rig.drain()


def test_without_retraction_there_is_no_way_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PageGrowth, "relieve", lambda self, short, *rest: list(short))
    rig = Rig(page_size=4, pages=18, max_context=64, headroom=0, max_running=4)
    for i in range(4):
        rig.submit(prompt(12, i), max_tokens=30)
    with pytest.raises(InternalError, match="stuck"):
        rig.drain()


def test_steps_keep_running_while_pages_are_on_their_way() -> None:
    """With a step in flight, a retraction costs its victim a place, not everybody a bubble."""
    rig = Rig(page_size=4, pages=40, max_context=64, headroom=0, max_running=8, lag=1)
    for i in range(8):
        rig.submit(prompt(9 + i, i), max_tokens=30)
    bubbles = 0
    while rig.loop.has_work():
        launched = len(rig.device.steps)
        rig.turn()
        bubbles += launched == len(rig.device.steps)
    rig.verify()
    assert rig.metrics.retractions >= 3
    assert bubbles <= 2 + rig.metrics.retractions // 2
