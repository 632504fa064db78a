"""What a run reports of itself: loss and acceptance by position, summed on the device between two lines.

Knows numbers only. Legend: K unrolled steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from speculative.eagle3.training.world import World


@dataclass(frozen=True)
class Reading:
    """Means since the last reading. loss: of step 0. match: share of rows whose best token is the target's,
    by step. chain: share of rows where this step and all before it match: acceptance of the draft at this
    position."""

    loss: float
    match: tuple[float, ...]
    chain: tuple[float, ...]

    @property
    def accept_length(self) -> float:
        """Expected tokens a step of a greedy chain of K drafts that starts at a random row."""
        return 1.0 + sum(self.chain)

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "loss": round(self.loss, 4),
            "match": [round(x, 4) for x in self.match],
            "chain": [round(x, 4) for x in self.chain],
            "accept_length": round(self.accept_length, 4),
        }

    def line(self, step: int, of: int, seconds: float) -> str:
        """As a line for a person."""
        match = " ".join(f"{x:.3f}" for x in self.match)
        chain = " ".join(f"{x:.3f}" for x in self.chain)
        return (
            f"step {step}/{of} {seconds:.0f}s loss {self.loss:.3f} match {match} "
            f"accepted {chain} length {self.accept_length:.2f}"
        )


class Meter:
    """Sums on the device; reading them is the only time the host waits."""

    def __init__(self, steps: int, device: torch.device) -> None:
        self._sums = torch.zeros(4, steps, dtype=torch.float64, device=device)  # loss, match, chain, rows
        self._alive = torch.zeros(0, dtype=torch.bool, device=device)

    def add(self, step: int, loss: Tensor, match: Tensor, rows: Tensor, size: int) -> None:
        """match: bool [m] of the batch's flattened `rows`, int64 [m] of `size`. Steps come in order."""
        with torch.no_grad():
            alive = match if step == 0 else match & self._alive.index_select(0, rows)
            self._alive = torch.zeros(size, dtype=torch.bool, device=match.device).index_copy_(0, rows, alive)
            count = torch.full((), match.shape[0], dtype=torch.float64, device=match.device)
            self._sums[:, step] += torch.stack((loss.double(), match.sum(), alive.sum(), count))

    def read(self, world: World) -> Reading | None:
        """Means over all processes, then start anew; None when nothing was added."""
        sums = world.add(self._sums.clone()).cpu()
        self._sums.zero_()
        loss, match, chain, rows = (x.tolist() for x in sums)
        if not rows[0]:
            return None
        rows = [max(r, 1.0) for r in rows]
        return Reading(
            loss[0] / rows[0],
            tuple(m / r for m, r in zip(match, rows, strict=True)),
            tuple(c / r for c, r in zip(chain, rows, strict=True)),
        )
