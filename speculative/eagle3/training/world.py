"""The processes of a run, one or several: who takes which share, and sums over all. Knows no training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn

from speculative.eagle3.training.data import Ids


@dataclass(frozen=True)
class World:
    """rank of size processes; with more than one, torch.distributed is initialised. device: where what is
    exchanged lies."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, chosen: Ids) -> Ids:
        """This process's part of a global batch."""
        return chosen[self.rank :: self.size]

    def add(self, value: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size > 1:
            distributed.all_reduce(value)
        return value

    def any(self, flag: bool) -> bool:
        """Whether it is true for any process: all leave a loop together."""
        if self.size == 1:
            return flag
        return bool(self.add(torch.tensor(float(flag), device=self.device)).item())

    def agreed(self, value: float) -> float:
        """The first process's value: what all decide by has to be the same."""
        if self.size == 1:
            return value
        own = value if self.first else 0.0
        return float(self.add(torch.tensor(own, dtype=torch.float64, device=self.device)).item())

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum the gradients of all processes in one exchange; losses are divided by global counts already."""
        if self.size == 1:
            return
        own = list(parameters)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in own]
        flat = self.add(torch.cat([grad.flatten() for grad in grads]))
        for parameter, part in zip(own, torch.split(flat, [p.numel() for p in own]), strict=True):
            parameter.grad = part.view_as(parameter)
