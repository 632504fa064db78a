"""Ratios of repeated measurements with confidence intervals: Student's t on logarithms.

Plain numbers in, plain numbers out; knows nothing of rows. No interval is claimed from fewer than three.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

MIN_REPEATS = 3
LEVEL = 0.95
EXACT = 1e-9  # a spread of logarithms below it counts as none: only rounding separates such values


@dataclass(frozen=True)
class Ratio:
    """value: how many times the baseline. low, high: the interval at LEVEL, None where none is claimed.
    p: two-sided, of "no difference"; None with the interval. count: values on the smaller side."""

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    count: int = 0


def ratio(values: Sequence[float], base: Sequence[float]) -> Ratio | None:
    """Ratio of the geometric means. Interval: Welch's t on the logarithms of independent repeats (Welch 1947,
    "The generalization of Student's problem"); its degrees of freedom are rounded down, which widens it.
    None where a side has no positive value."""
    ours, theirs = _logs(values), _logs(base)
    if not ours or not theirs:
        return None
    mean = statistics.fmean(ours) - statistics.fmean(theirs)
    count = min(len(ours), len(theirs))
    if count < MIN_REPEATS:
        return Ratio(math.exp(mean), count=count)
    parts = [statistics.variance(logs) / len(logs) for logs in (ours, theirs)]
    freedom = _welch(parts, [len(ours) - 1, len(theirs) - 1])
    return _interval(mean, sum(parts), freedom, count)


def paired_ratio(pairs: Sequence[tuple[float, float]]) -> Ratio | None:
    """Geometric mean of value / base over pairs that share everything else. Interval: Student's t on the
    logarithms of the pairs' ratios."""
    logs = [math.log(value / base) for value, base in pairs if value > 0 and base > 0]
    if not logs:
        return None
    mean = statistics.fmean(logs)
    if len(logs) < MIN_REPEATS:
        return Ratio(math.exp(mean), count=len(logs))
    square = statistics.variance(logs) / len(logs)
    return _interval(mean, square, len(logs) - 1, len(logs))


def adjusted(values: Sequence[float]) -> list[float]:
    """p values that hold for all of them together (Holm 1979, "A simple sequentially rejective multiple
    test procedure"), in the order given."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    found, highest = [0.0] * len(values), 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(values) - rank) * values[place]))
        found[place] = highest
    return found


def t_tail(t: float, freedom: int) -> float:
    """P(|T| > |t|) of Student's t with a whole number of degrees of freedom (Abramowitz and Stegun 1964,
    26.7.3 and 26.7.4)."""
    theta = math.atan(abs(t) / math.sqrt(freedom))
    square = math.cos(theta) ** 2
    term, total = 1.0, 1.0
    first = 3 if freedom % 2 else 2
    for k in range(first, freedom - 1, 2):
        term *= square * (k - 1) / k
        total += term
    if freedom % 2 == 0:
        return 1.0 - math.sin(theta) * total
    inner = math.sin(theta) * math.cos(theta) * total if freedom > 1 else 0.0
    return 1.0 - 2.0 / math.pi * (theta + inner)


@lru_cache
def t_quantile(freedom: int, level: float = LEVEL) -> float:
    """The t that |T| stays under with probability `level`."""
    low, high = 0.0, 1.0
    while t_tail(high, freedom) > 1.0 - level:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, freedom) > 1.0 - level else (low, middle)
    return high


def _interval(mean: float, square: float, freedom: int, count: int) -> Ratio:
    """square: variance of the mean."""
    value = math.exp(mean)
    if square < EXACT**2:
        same = abs(mean) < EXACT
        return Ratio(value, value, value, 1.0 if same else 0.0, count)
    error = math.sqrt(square)
    reach = t_quantile(freedom) * error
    return Ratio(value, math.exp(mean - reach), math.exp(mean + reach), t_tail(mean / error, freedom), count)


def _welch(parts: Sequence[float], freedoms: Sequence[int]) -> int:
    below = sum(part**2 / freedom for part, freedom in zip(parts, freedoms, strict=True))
    return max(1, math.floor(sum(parts) ** 2 / below)) if below > 0 else sum(freedoms)


def _logs(values: Sequence[float]) -> list[float]:
    return [math.log(value) for value in values if value > 0]
