"""How sure an accuracy is, and whether two of them differ: short exact formulas. Knows only counts.

Importable without torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist


@dataclass(frozen=True)
class Share:
    """`correct` of `of`, with an interval for the true share; value and interval are None for of = 0."""

    correct: int
    of: int
    value: float | None
    low: float | None
    high: float | None


def wilson(correct: int, of: int, confidence: float = 0.95) -> Share:
    """The share with Wilson's score interval (Wilson 1927, J. Am. Stat. Assoc. 22, p. 209), which stays in
    0..1 and holds for small counts, where the textbook interval fails."""
    if of == 0:
        return Share(0, 0, None, None, None)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = correct / of
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    low = 0.0 if correct == 0 else middle - half
    high = 1.0 if correct == of else middle + half
    return Share(correct, of, share, low, high)


def mcnemar(only_first: int, only_second: int) -> float:
    """The p-value of "neither is better" for paired answers (McNemar 1947, Psychometrika 12, p. 153), exact.

    Questions that both or neither got right say nothing; of the others each side wins every one with
    probability 1/2, so the count is binomial, and both of its tails are counted. In whole numbers until the
    last division, so it is right for any size.
    """
    total = only_first + only_second
    tail = sum(math.comb(total, k) for k in range(min(only_first, only_second) + 1))
    return float(min(1.0, 2 * tail / (1 << total)))
