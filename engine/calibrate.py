"""Measures what a decode step costs, by batch size and width; or one ratio of it, to check an older table.

Knows clocks and repeats; not how a step is run, nor where a table is kept. Free of torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.metrics import EngineMetrics
from engine.models.source import Progress
from speculative.width import StepCosts

if TYPE_CHECKING:
    from engine.scratch_steps import ScratchSteps

LIMIT_SECONDS = 1.5  # for a table; the smallest batch is measured whatever it takes
CHECK_SECONDS = 0.25  # for a check
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ROUNDS = 5  # each figure is the fastest of so many repeats: what disturbs a step only ever adds to it
LEAST_ROUNDS = 2  # whatever they take: one repeat alone shows no scatter
MEASURING, CHECKING = "measuring step costs", "checking step costs"  # as progress is told
ALMOST = 0.99  # of a progress, until it is over

Timer = Callable[[int, int, bool], float]  # (batch, width, resume) -> seconds of a step
Clock = Callable[[], float]
Kind = tuple[int, bool]  # width, resume
Times = dict[Kind, list[float]]


@dataclass(frozen=True)
class Measurement:
    """scatter: the worst of all figures' (second fastest repeat / fastest one) - 1, or of two widths'
    (narrower step / wider step) - 1. Where it is large, the machine was too busy to tell."""

    costs: StepCosts
    scatter: float


@dataclass(frozen=True)
class Ratio:
    """What a step of one request costs, in plain steps. scatter: as a Measurement's."""

    value: float
    scatter: float


@dataclass(frozen=True)
class Gauge:
    """Measures on an engine that serves nobody yet, and leaves no trace in it.

    widths: of its decode steps. resumes: whether coming back from a pause costs anything.
    """

    steps: ScratchSteps
    metrics: EngineMetrics
    widths: Sequence[int]
    resumes: bool
    progress: Progress

    def measure(self, what: str = MEASURING) -> Measurement:
        """All of it; about LIMIT_SECONDS. what: as progress is told."""
        steps = self.steps
        with self.metrics.unchanged(), steps.untouched():
            return measure(
                steps.seconds,
                self.widths,
                steps.max_batch,
                resumes=self.resumes,
                progress=self.progress,
                clock=steps.clock,
                what=what,
            )

    def ratio(self, width: int, what: str = CHECKING) -> Ratio:
        """Of steps of this width, now; about CHECK_SECONDS."""
        steps = self.steps
        with self.metrics.unchanged(), steps.untouched():
            return ratio(steps.seconds, width, progress=self.progress, clock=steps.clock, what=what)


def measure(
    timer: Timer,
    widths: Sequence[int],
    max_batch: int,
    *,
    resumes: bool,
    progress: Progress,
    limit: float = LIMIT_SECONDS,
    clock: Clock = time.perf_counter,
    what: str = MEASURING,
) -> Measurement:
    """The table: every width at as many batch sizes as the time allows, from small ones up."""
    batches = [batch for batch in BATCHES if batch <= max_batch]
    kinds = [(width, False) for width in sorted({1, *widths})]
    kinds += [(kinds[1][0], True)] if resumes and len(kinds) > 1 else []
    told = _Told(timer, what, progress, _Course(len(batches), len(kinds), limit, clock))
    start, last, scatter = clock(), 0.0, 0.0
    costs = StepCosts(seconds := {}, resume := {})
    for done, batch in enumerate(batches):
        begin = clock()
        left = limit - (begin - start)
        if done and 1.5 * last > left:  # the next size takes longer than this one did
            break
        times = _rounds(told, batch, kinds, left / 2, clock)
        last = clock() - begin
        figures = {kind: min(own) for kind, own in times.items()}
        plain = [figures[kind] for kind in kinds if not kind[1]]
        scatter = max(scatter, _disorder(plain), *map(_scatter, times.values()))
        seconds.update({(batch, width): figure for (width, back), figure in figures.items() if not back})
        if resumes and len(kinds) > 1:
            resume[batch] = max(0.0, figures[kinds[-1]] - figures[kinds[1]])
    told.over()
    return Measurement(costs, scatter)


def ratio(
    timer: Timer,
    width: int,
    *,
    progress: Progress,
    limit: float = CHECK_SECONDS,
    clock: Clock = time.perf_counter,
    what: str = CHECKING,
) -> Ratio:
    """Of steps of this width, from a few repeats of them and of plain ones."""
    plain, wide = (1, False), (width, False)
    told = _Told(timer, what, progress, _Course(1, 2, limit, clock))
    times = _rounds(told, 1, (plain, wide), limit, clock)
    told.over()
    figures = [min(times[plain]), min(times[wide])]
    return Ratio(figures[1] / figures[0], max(_disorder(figures), *map(_scatter, times.values())))


def _rounds(timer: Timer, batch: int, kinds: Sequence[Kind], limit: float, clock: Clock) -> Times:
    """Repeats for one batch size, until `limit` seconds are over.

    The kinds take turns, so that a machine that slows down slows them all; and another one begins each round,
    since another program that comes back at regular intervals would meet the same kind in every round.
    """
    start = clock()
    for width, back in kinds:  # warm-up: compiles, fills caches
        timer(batch, width, back)
    times: Times = {kind: [] for kind in kinds}
    for number in range(ROUNDS):
        if number >= LEAST_ROUNDS and clock() - start > limit:
            break
        first = number % len(kinds)
        for width, back in (*kinds[first:], *kinds[:first]):
            times[width, back].append(timer(batch, width, back))
    return times


def _scatter(times: Sequence[float]) -> float:
    fastest, second, *_ = sorted(times)
    return second / fastest - 1


def _disorder(costs: Sequence[float]) -> float:
    """Of steps from the narrowest up: the most that one costs beyond a wider one. More tokens are no less
    work, so that only a disturbance makes them much cheaper."""
    return max((a / b - 1 for i, a in enumerate(costs) for b in costs[i + 1 :]), default=0.0)


class _Course:
    """How far a measurement is. It ends with its last step, or sooner: when its time is over and the steps
    that are run whatever they take are done. Counting steps alone would then stop at a few per cent."""

    def __init__(self, batches: int, kinds: int, limit: float, clock: Clock) -> None:
        self.total = batches * (ROUNDS + 1) * kinds
        self._least = (LEAST_ROUNDS + 1) * kinds
        self._limit, self._clock, self._start = limit, clock, clock()

    def after(self, steps: int) -> int:
        """Of `total`; never less than before."""
        spent = (self._clock() - self._start) / self._limit if self._limit > 0 else 1.0
        share = min(spent, steps / self._least, ALMOST)
        return max(steps, int(share * self.total))


class _Told:
    """A timer that says before each step how far it is: a slow machine takes long for the first few."""

    def __init__(self, timer: Timer, what: str, progress: Progress, course: _Course) -> None:
        self._timer, self._what, self._progress, self._course = timer, what, progress, course
        self._done = 0

    def __call__(self, batch: int, width: int, resume: bool) -> float:
        self._progress(self._what, self._course.after(self._done), self._course.total)
        self._done += 1
        return self._timer(batch, width, resume)

    def over(self) -> None:
        self._progress(self._what, self._course.total, self._course.total)
