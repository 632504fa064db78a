"""Silent requests by a Triton kernel. Imports it, so import this only once the way to run Triton is settled
(backends.triton)."""

from __future__ import annotations

from torch import Tensor

from engine.batch import DraftTree
from kernels.silence import silence
from speculative.base import DraftView
from speculative.eagle3.options import REMEMBERED
from speculative.eagle3.silence import COLD, TOO_LONG


def triton_silenced(
    tree: DraftTree, view: DraftView, longest: int | None, behind: Tensor | None
) -> DraftTree:
    """As speculative.eagle3.silence.silenced."""
    if longest is None and behind is None:
        return tree
    lens, bits = view.seq_lens.device, (TOO_LONG, COLD)
    parent, signal = silence(tree.parent, lens, view.rows, longest, behind, REMEMBERED, bits)
    return DraftTree(tree.tokens, parent, signal, tree.probs)
