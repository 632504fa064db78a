"""How a draft tree grows, by Triton kernels: one launch an operation, the results of the torch reference.

Imports the kernels, so import it only once the way to run Triton is settled (backends.triton).
"""

from __future__ import annotations

from torch import Tensor

from engine.batch import DraftTree
from kernels.draft_tree import front, keep_best, next_level
from speculative.eagle3.candidates import Candidates
from speculative.eagle3.growth import Front, TreeSize
from speculative.eagle3.passes import Window
from speculative.views import DraftView


class TritonGrowth:
    """`TorchGrowth`, integer for integer."""

    def __init__(self, size: TreeSize, early: bool = False) -> None:
        """early: as kernels.launch.dependent takes it."""
        self._size, self._early = size, early

    def first(self, tokens: Tensor, logprobs: Tensor) -> Candidates:
        none = tokens[:, :0]
        parent = none.long()  # of no elements: nothing is launched
        added = tokens.unsqueeze(1), logprobs.unsqueeze(1)
        return Candidates(*next_level(none, logprobs[:, :0], parent, parent, *added, early=self._early))

    def add(self, found: Candidates, survivors: Tensor, tokens: Tensor, logprobs: Tensor) -> Candidates:
        known = found.tokens, found.scores, found.parent
        return Candidates(*next_level(*known, survivors, tokens, logprobs, early=self._early))

    def front(self, view: DraftView, found: Candidates, window: Window | None) -> Front:
        size, lens = self._size, view.seq_lens.device
        seen = None if window is None else window.seen
        survivors, tokens, source, positions, slots, own, seen = front(
            found.tokens, found.scores, seen, view.rows, lens, size.topk, size.first_scratch, size.scratch,
            early=self._early,
        )  # fmt: skip
        return Front(survivors, tokens, source, positions, Window(slots, own, seen))

    def keep(self, found: Candidates, root: Tensor, count: int) -> DraftTree:
        known = found.tokens, found.scores, found.parent
        return DraftTree(*keep_best(*known, root, count, early=self._early))
