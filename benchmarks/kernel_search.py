"""Finds the fastest plan of a place: a few starts, then steps around the best ones, then a fair final.

Knows plans and a stopwatch that is handed in; nothing of GPUs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.kernel_candidates import Card, neighbours, starts
from engine.kernel_choices.plans import BUCKETS, CUDA, Place, Plan
from engine.kernel_choices.table import Entry

FINALISTS = 3
LIKE = 2  # matrices of other sizes whose winners are tried
LEAST_GAIN = 1.01  # a plan that gains less than the noise of the next run is not worth its compilation


@dataclass(frozen=True)
class Effort:
    """beam: plans around which the search goes on; depth: steps around them; starts: most plans to begin
    with, None: all there are."""

    beam: int
    depth: int
    starts: int | None = None


THOROUGH = Effort(beam=2, depth=3)
QUICK = Effort(beam=1, depth=1, starts=8)  # for what is nearly known: two rounds of compiling

Quick = Callable[[Sequence[Plan]], Sequence[float]]  # seconds of each; infinite where it cannot run
Fair = Callable[
    [Sequence[Plan | None]], Sequence[Sequence[float]]
]  # rounds of seconds, turn by turn; None: library


@dataclass(frozen=True)
class Stopwatch:
    """quick: rough times of many. fair: contenders in turn, several rounds."""

    quick: Quick
    fair: Fair


def best_entry(
    place: Place, card: Card, watch: Stopwatch, known: Sequence[Plan] = (), effort: Effort = THOROUGH
) -> Entry:
    """The plan that beats the library, or None for the library, with the times of the final. known: plans
    that won for the same matrix, or for one like it."""
    tried: dict[Plan, float] = {}
    done: set[Plan] = set()  # whose neighbours were tried
    _try(starts(place, card, known, effort.starts), tried, watch)
    for _ in range(effort.depth):
        around = [plan for plan in _front(tried, effort.beam) if plan not in done]
        if not around:
            break
        done.update(around)
        _try([near for plan in around for near in neighbours(plan, place, card)], tried, watch)
    return _final(_finalists(tried), watch)


def winners(found: Mapping[Place, Entry], place: Place) -> list[Plan]:
    """What won for the same matrix, at the nearest numbers of tokens first, then for the LIKE matrices of the
    same stage that are nearest in size."""
    near = sorted(found, key=lambda other: abs(BUCKETS.index(other.tokens) - BUCKETS.index(place.tokens)))
    same = [other for other in near if replace(other, tokens=place.tokens) == place]
    like = [other for other in near if (other.stage, other.dtype) == (place.stage, place.dtype)]
    like = [other for other in like if other.tokens == place.tokens and other not in same]
    like.sort(key=lambda other: abs(math.log(other.n * other.k / (place.n * place.k))))
    plans = [found[other].plan for other in (*same, *like[:LIKE])]
    return [plan for plan in dict.fromkeys(plans) if plan is not None]


def _try(plans: Sequence[Plan], tried: dict[Plan, float], watch: Stopwatch) -> None:
    fresh = [plan for plan in dict.fromkeys(plans) if plan not in tried]
    if fresh:
        tried.update(zip(fresh, watch.quick(fresh), strict=True))


def _front(tried: dict[Plan, float], count: int) -> list[Plan]:
    working = [plan for plan, seconds in tried.items() if math.isfinite(seconds)]
    return sorted(working, key=lambda plan: tried[plan])[:count]


def _finalists(tried: dict[Plan, float]) -> list[Plan]:
    """The fastest; of those that every machine can use the fastest in any case."""
    anywhere = {plan: seconds for plan, seconds in tried.items() if plan.kernel not in CUDA}
    return list(dict.fromkeys([*_front(tried, FINALISTS), *_front(anywhere, 1)]))


def _final(plans: Sequence[Plan], watch: Stopwatch) -> Entry:
    """Paired: the gain is the median over the rounds of what both took in the same round."""
    library, *others = watch.fair([None, *plans])
    gains = {
        plan: statistics.median(a / b for a, b in zip(library, times, strict=True))
        for plan, times in zip(plans, others, strict=True)
    }
    seconds = {plan: statistics.median(times) for plan, times in zip(plans, others, strict=True)}
    usual = statistics.median(library)
    first = _winner(plans, gains, seconds, usual)
    if not first.in_cuda:
        return first
    rest = _winner([plan for plan in plans if plan.kernel not in CUDA], gains, seconds, usual)
    return first if rest.plan is None else replace(first, instead=rest)


def _winner(
    plans: Sequence[Plan], gains: Mapping[Plan, float], seconds: Mapping[Plan, float], library: float
) -> Entry:
    """The plan that gains most over the library, or the library."""
    best = max(plans, key=lambda plan: gains[plan], default=None)
    if best is None or gains[best] < LEAST_GAIN:
        return Entry(None, library, library)
    return Entry(best, seconds[best], library)
