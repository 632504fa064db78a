"""The acceptance alarm: says once that drafts are accepted far less than their card promises.

A draft that reads the wrong hidden states still gives correct text, only no speed: nothing else would tell.
Knows counts of runs; no drafter.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

from engine.spec_metrics import Run

logger = logging.getLogger("syncless")
FAR = 0.6  # of the accepted drafts that the card promises: below it something is wrong
CHANCE = 1e-4  # that a draft which is no worse than FAR sets the alarm off
LEAST = 256  # runs; those of one answer are alike, so a few say little however clear they are
EVERY = 32  # steps between two looks


class AcceptanceWatch:
    """Sees what drafts came to and says nothing of it."""

    def check(self, runs: Mapping[Run, int]) -> None:
        """runs: all since the engine was built."""
        return None


UNWATCHED = AcceptanceWatch()


class AcceptanceAlarm(AcceptanceWatch):
    """Hoeffding's bound (1963, theorem 2) on the sum of accepted drafts, of greedy runs that were not cut:
    the alarm is silent until chance is ruled out, and speaks once."""

    def __init__(self, expected: Sequence[float], deepest: int) -> None:
        """expected: share of steps in which the draft at each depth is accepted. deepest: drafts on the
        longest path."""
        sums = [0.0]
        for share in expected:
            sums.append(sums[-1] + share)
        self._expected = sums
        self._deepest = min(deepest, len(expected))
        self._looks = 0
        self._done = False

    def check(self, runs: Mapping[Run, int]) -> None:
        self._looks += 1
        if self._done or self._looks % EVERY:
            return
        count, accepted, promised, squares = 0, 0, 0.0, 0
        for run, times in runs.items():
            levels = min(run.drafted, self._deepest)
            if run.greedy and not run.cut and levels:
                count += times
                accepted += times * min(run.accepted, levels)
                promised += times * self._expected[levels]
                squares += times * levels**2
        margin = math.sqrt(squares * math.log(1 / CHANCE) / 2)
        if count >= LEAST and accepted + margin < FAR * promised:
            self._done = True
            self._say(count, accepted, promised)

    def _say(self, count: int, accepted: int, promised: float) -> None:
        logger.warning(
            "drafts are accepted far less than the draft's card says: %.2f tokens a step instead of %.2f, "
            "over %d steps. Likely causes: other hidden layers than it was trained on (see its config.json), "
            "prompts without the model's chat template, another rope_theta, or text unlike its own",
            1 + accepted / count,
            1 + promised / count,
            count,
        )
