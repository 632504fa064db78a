"""The best token of a draft head on a CPU: 4-bit scores make a short list, exact ones choose from it.

The head is most of what a draft pass reads, and 4-bit weights are a quarter of it; alone they would choose
another token at one position in six. Knows a matrix and rows of hidden states; nothing of drafts.
Legend: N rows, H hidden size, Vd outputs of the head, K candidates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.models.linear import Int4Linear, Linear
from engine.models.quantize import quantise_q4
from engine.models.weights import GROUP

CANDIDATES = 8
ROWS = 4  # the 4-bit product works in blocks of four rows; past one block the dense one is as fast
LEAST = 2048  # outputs below which nothing is gained


class Shortlist:
    """The argmax of a head, read in 4 bits first. `dense`: the head for every other use."""

    def __init__(self, weight: Tensor, dense: Linear) -> None:
        """weight: bfloat16 [Vd, H] on the CPU."""
        self._weight = weight
        self.dense = dense
        self._coarse = Int4Linear(quantise_q4(weight))

    def best(self, x: Tensor) -> Tensor:
        """x bfloat16 [N, H], normalised -> int64 [N]: the output with the largest score."""
        if x.shape[0] > ROWS:
            return self.dense(x).argmax(dim=1)
        ids = self._coarse(x).topk(CANDIDATES, dim=1).indices
        exact = torch.matmul(self._weight[ids].float(), x.float().unsqueeze(2)).squeeze(2)
        return ids.gather(1, exact.argmax(dim=1, keepdim=True)).squeeze(1)

    def nbytes(self) -> int:
        """Bytes of what comes on top of the head."""
        return self._weight.nbytes + self._coarse.nbytes()


class DenseBest:
    """The argmax of a head as it is."""

    def __init__(self, dense: Linear) -> None:
        self.dense = dense

    def best(self, x: Tensor) -> Tensor:
        """x [N, H], normalised -> int64 [N]."""
        return self.dense(x).argmax(dim=1)

    def nbytes(self) -> int:
        return 0


def chooser(weight: Tensor, dense: Linear) -> Shortlist | DenseBest:
    """What finds the best output of `dense`, whose matrix is weight [Vd, H]."""
    rows, columns = weight.shape
    small = weight.device.type != "cpu" or weight.dtype != torch.bfloat16 or rows < LEAST
    if small or rows % 16 or columns % GROUP:
        return DenseBest(dense)
    return Shortlist(weight, dense)
