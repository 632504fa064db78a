"""Who chooses the width of the next decode step: the contract, and the fixed choice.

Host data only, and a deterministic function of what was learned: results arrive one step late, so does every
choice. Knows no algorithm, no tensor and no request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class WidthChoice:
    """width: of the next step. resume: some of its requests were last decoded without drafts."""

    width: int
    resume: bool = False


@dataclass(frozen=True)
class StepCosts:
    """Measured seconds of one decode step by batch size and width; batch sizes in between are interpolated.

    seconds: (batch, width) -> seconds. Holds width 1 for every batch size that it holds at all.
    """

    seconds: Mapping[tuple[int, int], float]


class WidthPolicy(ABC):
    """Chooses one width a batch out of what is known of its requests. A record belongs to one request."""

    widest: int

    def open(self) -> object:
        """The record of a new request."""
        return None

    @abstractmethod
    def choose(self, records: Sequence[object]) -> WidthChoice:
        """For a decode step of the requests with these records."""

    def learn(self, record: object, width: int, drafted: int, accepted: int, signal: int) -> None:
        """One request's result of an applied step: its width, real drafts, accepted ones, and what the
        drafter told (DraftTree.signal)."""
        return None


class FixedWidth(WidthPolicy):
    """Always the same."""

    def __init__(self, width: int) -> None:
        self.widest = width
        self._choice = WidthChoice(width)

    def choose(self, records: Sequence[object]) -> WidthChoice:
        return self._choice
