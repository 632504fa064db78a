"""How contenders of a place are timed, without a GPU: turn by turn, and for how long."""

from __future__ import annotations

import itertools

import pytest

from benchmarks import kernel_timing
from benchmarks.kernel_timing import LASTING, ROUNDS, StageTimer
from engine.kernel_choices.plans import LINEAR, Place, Plan

PLAN = Plan("halves", 128, 64, 8, 6)
REPLAY = 0.01  # seconds by the clock of this test


@pytest.mark.parametrize("tokens", [1, 64, 96, 256])
def test_of_many_tokens_a_turn_lasts_until_the_clock_has_settled(
    tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a product takes at first, before its power lowers the clock, does not count; of few tokens, which
    leave power over, one replay tells."""
    timer = object.__new__(StageTimer)
    timer._place = Place(LINEAR, "bfloat16", tokens, 4096, 14336)
    clock, played = itertools.count(), list[str]()
    now = [0.0]
    monkeypatch.setattr(kernel_timing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timer, "_graph", str)

    def seconds(graph: str) -> float:
        now[0] += REPLAY
        played.append(graph)
        return float(next(clock))

    monkeypatch.setattr(timer, "_seconds", seconds)
    library, plan = timer.fair([None, PLAN])
    turns = [name for name, _ in itertools.groupby(played)]
    assert turns == ["None", str(PLAN)] * ROUNDS
    replays = round(LASTING / REPLAY) + 1 if tokens > 64 else 1
    assert len(played) == pytest.approx(2 * ROUNDS * replays, abs=2 * ROUNDS)
    lasts = list(itertools.accumulate(len(list(turn)) for _, turn in itertools.groupby(played)))
    assert [round(time) + 1 for pair in zip(library, plan, strict=True) for time in pair] == lasts
