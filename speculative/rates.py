"""Acceptance of drafts by depth, counted with exponential forgetting. Knows counts, no drafter, no cost."""

from __future__ import annotations

from collections.abc import Sequence

HIGHEST = 0.99  # an estimate is never certain


class DecayedRates:
    """How often the draft at each depth was accepted where the one before it was. An observation loses the
    factor `decay` with each later one at its depth."""

    __slots__ = ("_decay", "_hits", "_tries")

    def __init__(self, depth: int, decay: float) -> None:
        self._decay = decay
        self._hits = [0.0] * depth
        self._tries = [0.0] * depth

    def learn(self, accepted: int, depth: int) -> None:
        """A walk over `depth` drafts that ended after `accepted` of them."""
        hits, tries, decay = self._hits, self._tries, self._decay
        for j in range(accepted):
            hits[j] = hits[j] * decay + 1
            tries[j] = tries[j] * decay + 1
        if accepted < depth:
            hits[accepted] *= decay
            tries[accepted] = tries[accepted] * decay + 1

    def rates(self, prior: Sequence[float], weight: float) -> tuple[float, ...]:
        """Estimates by depth. The prior counts as `weight` observations; where a depth is better or worse
        than its prior, the deeper ones are expected to be so too, until they are observed."""
        found, surprise = [], 1.0
        for hits, tries, own in zip(self._hits, self._tries, prior, strict=True):
            before = min(own * surprise, HIGHEST)
            rate = (hits + weight * before) / (tries + weight)
            surprise = rate / own if own else 1.0
            found.append(rate)
        return tuple(found)


def conditional(shares: Sequence[float], depth: int) -> tuple[float, ...]:
    """From the share of steps in which each depth is accepted to acceptance given that the one before was.

    Depths without a share are like the last one that has one.
    """
    found: list[float] = []
    before = 1.0
    for share in shares[:depth]:
        found.append(min(share / before, HIGHEST) if before else 0.0)
        before = share
    return tuple(found + found[-1:] * (depth - len(found)))
