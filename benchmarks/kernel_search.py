"""Finds the fastest plan of a place: a few starts, then steps around the best ones, then a fair final.

Knows plans and a stopwatch that is handed in; nothing of GPUs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.kernel_candidates import Card, neighbours, starts
from engine.kernel_choices.plans import Place, Plan
from engine.kernel_choices.table import Entry

BEAM = 2  # plans around which the search goes on
DEPTH = 3  # steps around them
FINALISTS = 3
LEAST_GAIN = 1.01  # a plan that gains less than the noise of the next run is not worth its compilation

Quick = Callable[[Sequence[Plan]], Sequence[float]]  # seconds of each; infinite where it cannot run
Fair = Callable[
    [Sequence[Plan | None]], Sequence[Sequence[float]]
]  # rounds of seconds, turn by turn; None: library


@dataclass(frozen=True)
class Stopwatch:
    """quick: rough times of many. fair: contenders in turn, several rounds."""

    quick: Quick
    fair: Fair


def best_entry(place: Place, card: Card, watch: Stopwatch, known: Sequence[Plan] = ()) -> Entry:
    """The plan that beats the library, or None for the library, with the times of the final. known: plans
    that won for the same matrix at other numbers of tokens."""
    tried: dict[Plan, float] = {}
    done: set[Plan] = set()  # whose neighbours were tried
    _try(starts(place, card, known), tried, watch)
    for _ in range(DEPTH):
        around = [plan for plan in _front(tried, BEAM) if plan not in done]
        if not around:
            break
        done.update(around)
        _try([near for plan in around for near in neighbours(plan, place, card)], tried, watch)
    return _final(_front(tried, FINALISTS), watch)


def _try(plans: Sequence[Plan], tried: dict[Plan, float], watch: Stopwatch) -> None:
    fresh = [plan for plan in dict.fromkeys(plans) if plan not in tried]
    if fresh:
        tried.update(zip(fresh, watch.quick(fresh), strict=True))


def _front(tried: dict[Plan, float], count: int) -> list[Plan]:
    working = [plan for plan, seconds in tried.items() if math.isfinite(seconds)]
    return sorted(working, key=lambda plan: tried[plan])[:count]


def _final(plans: Sequence[Plan], watch: Stopwatch) -> Entry:
    """Paired: the gain is the median over the rounds of what both took in the same round."""
    library, *others = watch.fair([None, *plans])
    usual = statistics.median(library)
    gains = [statistics.median(a / b for a, b in zip(library, times, strict=True)) for times in others]
    if not gains or max(gains) < LEAST_GAIN:
        return Entry(None, usual, usual)
    first = gains.index(max(gains))
    return Entry(plans[first], statistics.median(others[first]), usual)
