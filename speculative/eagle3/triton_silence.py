"""Silent requests by a Triton kernel. Imports it, so import this only once the way to run Triton is settled
(backends.triton)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.batch import DraftTree
from kernels.silence import silence
from speculative.eagle3.options import REMEMBERED
from speculative.eagle3.silence import COLD, TOO_LONG
from speculative.views import DraftView


@dataclass(frozen=True)
class TritonSilenced:
    """As speculative.eagle3.silence.silenced. early: as kernels.launch.dependent takes it."""

    early: bool = False

    def __call__(
        self, tree: DraftTree, view: DraftView, longest: int | None, behind: Tensor | None
    ) -> DraftTree:
        if longest is None and behind is None:
            return tree
        lens, bits = view.seq_lens.device, (TOO_LONG, COLD)
        parent, signal = silence(
            tree.parent, lens, view.rows, longest, behind, REMEMBERED, bits, early=self.early
        )
        return DraftTree(tree.tokens, parent, signal, tree.probs)
