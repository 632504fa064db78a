"""Holds a new course to a recorded one: what has to happen next, and where the two part.

Knows lines of courses; nothing of engines or files.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from engine.replay.course import Arrival, Closed, Decode, Event, Line, Prefill, entry_of, steps_of


class Guide:
    """Lets an engine run as it likes."""

    def begins(self, head: str, times: int) -> float:
        """A new line begins, with this head; the one before it happened `times` times. Returns how often the
        new one may happen, at most."""
        return math.inf

    def exceeded(self) -> None:
        """The line in progress happened once more than it may."""
        return None

    def due(self, times: int, applied: int) -> Event | None:
        """What has to happen before another turn; None: the turn may be taken. times: of the line in
        progress. applied: steps whose results were applied."""
        return None


UNBOUND = Guide()


class Recorded(Guide):
    """Follows the lines of a recording until something else happens; then lets the engine run as it likes.

    parted: where and how the courses parted, None as long as they agree.
    """

    def __init__(self, lines: Sequence[Line], *, stopped: bool = False) -> None:
        """stopped: the recorded run was stopped before its end, which then is an event of its own."""
        self._lines = lines
        self._heads = [line.entry.head() for line in lines]
        self._stopped = stopped
        self._at = 0  # lines that have begun
        self._missing = 0  # steps of the last of them that did not come
        self._coming = Counter(e.content for line in lines if isinstance(e := line.entry, Arrival))
        self.parted: str | None = None

    @property
    def following(self) -> bool:
        """Whether there is more to follow."""
        return self.parted is None and self._at < len(self._lines)

    @property
    def steps(self) -> int:
        """Launched steps of the recording that agreed, those of the line in progress taken for granted."""
        return steps_of(self._lines[: self._at]) - self._missing

    @property
    def recorded_steps(self) -> int:
        return steps_of(self._lines)

    def begins(self, head: str, times: int) -> float:
        if not self.following:  # the recording of a run that was killed ends anywhere
            return math.inf
        missing = self._last.times - times if self._at else 0
        if missing:
            self._missing = missing
            self._part(f"{entry_of(head)} instead of another decode step")
        elif self._heads[self._at] != head:
            self._part(f"{entry_of(head)} instead of {self._lines[self._at].entry}")
        else:
            self._at += 1
            return self._last.times if self._at < len(self._lines) else math.inf
        return math.inf

    def exceeded(self) -> None:
        if self.parted is None:
            self._part(f"another decode step instead of {self._lines[self._at].entry}")

    def due(self, times: int, applied: int) -> Event | None:
        if not self.following or (self._at and times < self._last.times):
            return None
        entry = self._lines[self._at].entry
        if isinstance(entry, Prefill | Decode) or entry.applied > applied:
            return None
        return None if isinstance(entry, Closed) and not self._stopped else entry

    def announce(self, content: tuple[int, int, int]) -> None:
        """A request of this content was handed over, whenever it is due; the recording has to know it, unless
        the run was stopped before it came."""
        if self._coming[content] > 0:
            self._coming[content] -= 1
        elif self.following and not (self._stopped and self._coming.total() == 0):
            self._part(f"a request of {content[1]} tokens came that the recording does not have")

    def end(self) -> None:
        """Whatever happens from here on is no part of the recording."""
        self._at = len(self._lines)

    def missed(self, entry: Event) -> None:
        """What was due cannot happen."""
        self._part(f"{entry} did not come")

    @property
    def _last(self) -> Line:
        return self._lines[self._at - 1]

    def _part(self, what: str) -> None:
        self.parted = f"after step {self.steps}: {what}"
