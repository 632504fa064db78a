"""How steps are timed: which ones, how often, what disturbs the figures, and what is told meanwhile."""

from __future__ import annotations

from collections import Counter

import pytest

from engine.calibrate import LEAST_ROUNDS, ROUNDS, Measurement, Ratio, measure, ratio
from engine.loading import LineProgress
from engine.models.source import silent
from speculative.width import StepCosts


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
    found = measure(clock.step, (2, 4), 8, resumes=resumes, progress=silent, limit=1e9, clock=clock)
    costs = found.costs
    assert found.scatter == 0.0
    assert dict(costs.seconds) == {(b, w): b * w for b in (1, 2, 4, 8) for w in (1, 2, 4)}
    assert dict(costs.resume) == (dict.fromkeys((1, 2, 4, 8), 10.0) if resumes else {})
    assert len(clock.steps) == 4 * (ROUNDS + 1) * (3 + resumes)


@pytest.mark.parametrize("limit", [0.0, 50.0, 100.0, 400.0])
def test_the_time_limit_holds_once_the_smallest_batch_is_known(limit: float) -> None:
    clock = Clock()
    costs = measure(clock.step, (2, 4), 64, resumes=False, progress=silent, limit=limit, clock=clock).costs
    assert {(1, 1), (1, 2), (1, 4)} <= set(costs.seconds)
    assert clock.now <= max(limit * 1.5, 7 * (1 + LEAST_ROUNDS))
    assert all(dict(costs.seconds)[key] == key[0] * key[1] for key in costs.seconds)
    assert len(costs.seconds) == 3 or limit > 0


class Disturbed(Clock):
    """Another program takes the machine for `lost` seconds after every `between` seconds of ours."""

    def __init__(self, between: float, lost: float) -> None:
        super().__init__()
        self._between, self._lost, self._ours = between, lost, 0.0

    def step(self, batch: int, width: int, resume: bool) -> float:
        own = super().step(batch, width, resume)
        before, self._ours = self._ours, self._ours + own
        lost = self._lost * (self._ours // self._between - before // self._between)
        self.now += lost
        return own + lost


@pytest.mark.parametrize("between", [5.0, 5.5, 7.0, 9.0, 10.0])
def test_a_program_that_comes_back_in_step_with_the_rounds_does_not_show(between: float) -> None:
    """A round of widths 1 and 4 takes five seconds: with a fixed order, one kind would always be met."""
    clock = Disturbed(between, 20.0)
    seen = ratio(clock.step, 4, progress=silent, limit=1e9, clock=clock)
    assert seen.value == 4.0
    assert {(batch, width) for batch, width, _ in clock.steps} == {(1, 1), (1, 4)}


def test_a_figure_that_no_repeat_confirms_shows_as_scatter() -> None:
    noise = iter(range(10**6))
    found = measure(
        lambda b, w, r: 1.5 ** (next(noise) % 7), (2,), 1, resumes=False, progress=silent, limit=1e9
    )
    assert found.scatter >= 0.5
    steady = measure(lambda b, w, r: 1.0 * w, (2,), 1, resumes=False, progress=silent, limit=1e9)
    assert steady == Measurement(StepCosts({(1, 1): 1.0, (1, 2): 2.0}), 0.0)


def test_a_check_of_slow_steps_takes_no_more_repeats_than_show_scatter() -> None:
    clock = Clock()
    assert ratio(clock.step, 8, progress=silent, clock=clock) == Ratio(8.0, 0.0)
    assert Counter(clock.steps) == {(1, 1, False): 1 + LEAST_ROUNDS, (1, 8, False): 1 + LEAST_ROUNDS}


def test_a_wide_step_that_is_much_cheaper_than_a_narrow_one_shows_as_scatter() -> None:
    """What a busy machine wrote over a good table: repeats that agree, of costs that cannot be."""
    seen = {1: 81.0, 2: 223.0, 3: 58.0, 5: 275.0, 8: 83.0}
    found = measure(lambda b, w, r: seen[w], (2, 3, 5, 8), 1, resumes=False, progress=silent, limit=1e9)
    assert found.scatter == pytest.approx(223 / 58 - 1)
    looked = ratio(lambda b, w, r: 1.0 if w == 1 else 0.42, 8, progress=silent, limit=1e9)
    assert looked.scatter == pytest.approx(1 / 0.42 - 1)
    assert measure(lambda b, w, r: 5.0, (2, 8), 4, resumes=True, progress=silent, limit=1e9).scatter == 0.0


def test_progress_is_told_before_each_step_and_at_the_end() -> None:
    told: list[tuple[str, int, int]] = []
    ratio(lambda b, w, r: 1.0, 8, progress=lambda *news: told.append(news))
    assert told == [("checking step costs", done, 2 * (ROUNDS + 1)) for done in range(2 * (ROUNDS + 1) + 1)]
    told.clear()
    measure(lambda b, w, r: 1.0, (2,), 1, resumes=False, progress=lambda *news: told.append(news))
    assert told[0] == ("measuring step costs", 0, 2 * (ROUNDS + 1))
    assert [done for _, done, _ in told] == list(range(2 * (ROUNDS + 1) + 1))


@pytest.mark.parametrize("limit", [0.0, 50.0, 400.0, 3000.0])
@pytest.mark.parametrize("check", [False, True])
def test_progress_goes_up_to_its_end_however_much_the_time_limit_skips(limit: float, check: bool) -> None:
    clock, told = Clock(), list[tuple[str, int, int]]()
    if check:
        ratio(clock.step, 8, limit=limit, clock=clock, progress=lambda *news: told.append(news))
    else:
        measure(
            clock.step, (2, 4), 64, resumes=True, limit=limit, clock=clock, progress=lambda *n: told.append(n)
        )
    (total,) = {total for _, _, total in told}
    shares = [done / total for _, done, _ in told]
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert shares[-2] < 1.0 == shares[-1]
    assert shares[-2] > 0.4, "what the limit skips does not keep it near nothing"


def test_waiting_people_hear_of_what_takes_longer_than_a_second() -> None:
    now, said = [0.0], list[str]()
    line = LineProgress(said.append, clock=lambda: now[0])
    now[0] = 30.0  # weights were read
    for seconds in (0.05, 0.6):
        for done in range(6):
            line("measuring step costs", done, 5)
            now[0] += seconds
    assert said == [f"measuring step costs: {share}%" for share in (40, 80, 100)]
