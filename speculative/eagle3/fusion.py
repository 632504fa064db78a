"""How the target's hidden states become one input of the draft layer. Knows nothing of where they come from.

Legend: T tokens, n fused states, Ht and H hidden sizes of target and draft.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor
from torch.nn import functional

from engine.models.linear import Linear


class StateNorm(ABC):
    """[T, n * Ht] -> [T, n * Ht], before the linear map."""

    @abstractmethod
    def __call__(self, states: Tensor) -> Tensor:
        """Never writes into `states`."""


class NoNorm(StateNorm):
    """The states as they are, as published."""

    def __call__(self, states: Tensor) -> Tensor:
        return states


class RowNorm(StateNorm):
    """A norm over each of n parts of a row: weight [n, Ht] (fc_norm) or [1, n * Ht] (norm_before_fc)."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight, self._eps = weight, eps

    def __call__(self, states: Tensor) -> Tensor:
        parts = states.view(states.shape[0], *self._weight.shape)
        return functional.rms_norm(parts, parts.shape[-1:], None, self._eps).mul_(self._weight).flatten(1)


class Unmapped(Linear):
    """A draft without `fc`: the target's final state goes in as it is."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.clone()

    def nbytes(self) -> int:
        return 0
