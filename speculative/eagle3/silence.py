"""Requests that get no drafts within a batch that drafts: past the draft's positions, or cold after a pause.

The drafter tells the host by the step's signal; the host counts requests. Knows no model.
Legend: B requests, W width.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from engine.batch import ABSENT, DraftTree
from engine.lazy import lazy_import
from speculative.eagle3.options import REMEMBERED
from speculative.views import DraftView
from speculative.width import WidthChoice, WidthPolicy

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy_import("torch")

logger = logging.getLogger("syncless")
TOO_LONG, COLD = 1, 2  # bits of the signal


class Silenced(Protocol):
    """`silenced`, by whatever operations suit."""

    def __call__(
        self, tree: DraftTree, view: DraftView, longest: int | None, behind: Tensor | None
    ) -> DraftTree: ...


def silenced(tree: DraftTree, view: DraftView, longest: int | None, behind: Tensor | None) -> DraftTree:
    """The tree without the drafts of rows with more than `longest` tokens, and of those that lack entries for
    good, and with a signal that says which; None: there are no such rows. behind: int32 [R] entries that a
    row lacks."""
    signal = None
    if longest is not None:
        signal = (view.seq_lens.device > longest).int() * TOO_LONG
    if behind is not None:
        cold = (behind[view.rows] > REMEMBERED).int() * COLD
        signal = cold if signal is None else signal + cold
    if signal is None:
        return tree
    drafts = torch.arange(tree.parent.shape[1], device=signal.device) > 0
    absent = (signal > 0).unsqueeze(1) & drafts
    return DraftTree(tree.tokens, torch.where(absent, ABSENT, tree.parent), signal, tree.probs)


@dataclass
class _Record:
    inner: object
    told: bool = False


class CountsLongRows(WidthPolicy):
    """Another policy, beside which requests are counted once they pass the draft's positions."""

    def __init__(self, inner: WidthPolicy, positions: int, count: Callable[[str], None]) -> None:
        self.widest = inner.widest
        self._inner = inner
        self._positions = positions
        self._count = count
        self._logged = False

    def open(self) -> object:
        return _Record(self._inner.open())

    def prefilled(self, record: object) -> None:
        self._inner.prefilled(_own(record).inner)

    def choose(self, records: Sequence[object], declined: int = 0) -> WidthChoice:
        return self._inner.choose([_own(record).inner for record in records], declined)

    def learn(self, record: object, width: int, drafted: int, accepted: int, signal: int) -> None:
        own = _own(record)
        if signal & TOO_LONG and not own.told:
            own.told = True
            self._tell()
        self._inner.learn(own.inner, width, drafted, accepted, signal)

    def _tell(self) -> None:
        self._count("draft_too_long")
        if not self._logged:
            self._logged = True
            logger.warning(
                "a request has reached position %d, the last that the draft model was made for, and goes on "
                "without drafts; more of them are counted as draft_too_long",
                self._positions,
            )


def _own(record: object) -> _Record:
    assert isinstance(record, _Record)
    return record
