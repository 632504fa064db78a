"""Temperatures and coins for drafts drawn at random: the step's side of speculative.views.DraftDraws.

Knows the sampling columns; no drafter.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.sampling.columns import SamplingColumns
from engine.sampling.rng import PURPOSE_DRAFT, uniform
from speculative.views import DraftDraws


@dataclass(frozen=True)
class RowDraws:
    """Of the requests in `rows`, int64 [B]."""

    columns: SamplingColumns
    rows: Tensor

    def temperature(self) -> Tensor:
        """fp32 [B]."""
        return self.columns.temperature[self.rows]

    def coins(self, positions: Tensor) -> Tensor:
        """float64 [B]."""
        return uniform(self.columns.key[self.rows], positions, PURPOSE_DRAFT)


def draws_of(columns: SamplingColumns, rows: Tensor) -> DraftDraws:
    """What a drafter of these rows may draw with."""
    return RowDraws(columns, rows)
