"""What the trainer asks of the model that it trains a draft for. Knows no model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from engine.models.shape import ModelShape


class Target(Protocol):
    """A frozen target on one device; its arithmetic is that of serving."""

    shape: ModelShape
    device: torch.device
    dtype: torch.dtype
    norm: Tensor  # [H], weight of the final norm

    def embed(self, ids: Tensor) -> Tensor:
        """int64 [...] -> [..., H]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, H] final states -> fp32 [N, V]."""

    def states(self, ids: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Whole sequences, ids int64 [T] end to end -> (final states [T, H], auxiliary states [T, A])."""
