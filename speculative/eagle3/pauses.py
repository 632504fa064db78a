"""What keeps a draft alive while nobody drafts: a ring of the target's last states, replayed on return.

Knows the relay fields that it owns and the passes; not who decides about pauses.
Legend: B requests, R table rows, n * Ht width of the target's states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from speculative.base import RelayField
from speculative.eagle3.options import REMEMBERED
from speculative.eagle3.passes import DraftPasses
from speculative.views import DraftView

STATES, BEHIND = "eagle3_states", "eagle3_behind"


class Pauses(ABC):
    """Steps of width 1, whose entries may be written later."""

    def fields(self) -> tuple[RelayField, ...]:
        return ()

    def put_off(self, view: DraftView, states: Tensor) -> bool:
        """Whether the entries of a step of width 1 (states [B, n * Ht]) need not be written now."""
        return False

    def caught_up(self, view: DraftView) -> None:
        """The rows' entries are all written, as after a prefill."""
        return None

    def behind(self, view: DraftView) -> Tensor | None:
        """int32 [R]: entries that a row lacks, for good where they are more than REMEMBERED; None: all rows
        have all of theirs."""
        return None

    @abstractmethod
    def resume(self, view: DraftView, hidden: Tensor) -> Tensor:
        """Write what was put off; hidden [B, H] of the rows' last entries -> the same, brought up to date."""


class NoPauses(Pauses):
    """Every step writes its entries at once."""

    def resume(self, view: DraftView, hidden: Tensor) -> Tensor:
        return hidden


class Ring(Pauses):
    """States of the last 64 positions that were put off, a row: position p lies at p % 64.

    A row that stays away longer has lost entries: it gets no drafts until its next prefill. Resuming at least
    every 64 tokens, at any width, keeps a row whole.
    """

    def __init__(self, passes: DraftPasses, states_width: int, dtype: str) -> None:
        self._passes = passes
        self._fields = (
            RelayField(STATES, (REMEMBERED, states_width), dtype),
            RelayField(BEHIND, (), "int32"),
        )

    def fields(self) -> tuple[RelayField, ...]:
        return self._fields

    def put_off(self, view: DraftView, states: Tensor) -> bool:
        ring = view.relay[STATES].flatten(0, 1)
        at = view.seq_lens.device.long() % REMEMBERED
        ring.index_copy_(0, view.rows * REMEMBERED + at, states)
        behind = view.relay[BEHIND]
        behind.index_copy_(0, view.rows, (behind[view.rows] + 1).clamp_max(REMEMBERED + 1))
        return True

    def caught_up(self, view: DraftView) -> None:
        view.relay[BEHIND].index_fill_(0, view.rows, 0)

    def behind(self, view: DraftView) -> Tensor | None:
        return view.relay[BEHIND]

    def resume(self, view: DraftView, hidden: Tensor) -> Tensor:
        behind = view.relay[BEHIND][view.rows]
        back = torch.arange(REMEMBERED, device=view.rows.device)
        at = view.seq_lens.device.long().unsqueeze(1) - 1 - back
        missing = (back < behind.unsqueeze(1)) & (at >= 0)
        at, rows = at.clamp_min(0), view.rows.unsqueeze(1)
        slots = torch.where(
            missing, view.slots(rows, at), 0
        )  # the padding page takes what must not be written
        tokens = torch.where(missing, view.tokens[rows, at + 1], 0)
        states = view.relay[STATES][rows, at % REMEMBERED]
        self._passes.restore(view, at, slots, tokens, states.flatten(0, 1))
        newest = self._passes.again(view, slots[:, 0], states[:, 0])
        cold = behind > REMEMBERED
        view.relay[BEHIND].index_copy_(0, view.rows, torch.where(cold, behind, 0))
        return torch.where(missing[:, :1], newest, hidden)
