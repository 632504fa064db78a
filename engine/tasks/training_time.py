"""How the time for writing text is shared out: what a stage may take at most, whatever the speed.

Free of torch. Knows stages and a clock; nothing of what they write.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

TURNS, REQUESTS, DOCUMENTS, ANSWERS = "turns", "requests", "documents", "answers"
# Share of task.generate_minutes after which each stage is over. One that ends early leaves its time to the
# next; answers always have the larger part.
ENDS = {TURNS: 0.2, REQUESTS: 0.3, DOCUMENTS: 0.4, ANSWERS: 1.0}


@dataclass(frozen=True)
class WritingTime:
    """began: when the clock said so; seconds: for all stages together, None for no limit."""

    began: float
    seconds: float | None = None
    clock: Callable[[], float] = time.perf_counter

    @classmethod
    def of(cls, minutes: float | None, clock: Callable[[], float] = time.perf_counter) -> WritingTime:
        """From now on."""
        return cls(clock(), None if minutes is None else 60 * minutes, clock)

    @property
    def passed(self) -> float:
        """Seconds so far."""
        return self.clock() - self.began

    def over(self, stage: str) -> bool:
        """Whether a stage has had its time."""
        return self.seconds is not None and self.passed >= ENDS[stage] * self.seconds
