"""Who chooses the width of the next decode step: the contract, and the fixed choice.

Host data only, and a deterministic function of what was learned: results arrive one step late, so does every
choice. Knows no algorithm, no tensor and no request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class WidthChoice:
    """width: of the next step. resume: some of its requests were last decoded without drafts."""

    width: int
    resume: bool = False


PLAIN = WidthChoice(1)  # of a batch in which nobody wants drafts


@dataclass(frozen=True)
class StepCosts:
    """Measured seconds of one decode step by batch size and width; batch sizes in between are interpolated.

    seconds: (batch, width) -> seconds. Holds the same widths, 1 among them, for every batch size that it
    holds at all. resume: batch -> seconds that a step costs more when its requests come back from a pause.
    """

    seconds: Mapping[tuple[int, int], float]
    resume: Mapping[int, float] = field(default_factory=dict)

    def at(self, batch: int, width: int) -> float:
        """Seconds of a decode step; KeyError for a width that was not measured."""
        return interpolated({b: cost for (b, w), cost in self.seconds.items() if w == width}, batch)

    def resume_at(self, batch: int) -> float:
        """Seconds more when requests come back; 0 where nobody measured."""
        return interpolated(self.resume, batch) if self.resume else 0.0


def interpolated(points: Mapping[int, float], at: int) -> float:
    """The value at `at` on straight lines through the points; past the last one in proportion to `at`, before
    the first one the first. KeyError without points."""
    if at in points:
        return points[at]
    below = max((x for x in points if x < at), default=None)
    above = min((x for x in points if x > at), default=None)
    if below is None or above is None:
        known = above if below is None else below
        if known is None:
            raise KeyError(at)
        return points[known] * max(1.0, at / known)
    share = (at - below) / (above - below)
    return points[below] + share * (points[above] - points[below])


class WidthPolicy(ABC):
    """Chooses one width a batch out of what is known of its requests. A record belongs to one request."""

    widest: int

    def open(self) -> object:
        """The record of a new request."""
        return None

    def prefilled(self, record: object) -> None:
        """The last chunk of a request's prefill is launched: the draft model, if there is one, is up to date
        with it. Again after a retraction."""
        return None

    @abstractmethod
    def choose(self, records: Sequence[object], declined: int = 0) -> WidthChoice:
        """For a decode step of the requests with these records, at least one, and of `declined` more that
        get no drafts and of which nothing is learned: a wide step costs them time, too."""

    def learn(self, record: object, width: int, drafted: int, accepted: int, signal: int) -> None:
        """One request's result of an applied step: its width, real drafts, accepted ones, and what the
        drafter told (DraftTree.signal)."""
        return None


class FixedWidth(WidthPolicy):
    """Always the same."""

    def __init__(self, width: int) -> None:
        self.widest = width
        self._choice = WidthChoice(width)

    def choose(self, records: Sequence[object], declined: int = 0) -> WidthChoice:
        return self._choice
