"""A tree of drafts: at every level the most probable K nodes are continued, and the best of all are verified.

Knows the passes and how a tree grows; nothing of acceptance.
Source: Li et al. 2024 (EAGLE-2), sec. 4. Legend: B requests, W width, K top-k, H hidden size of the draft.
"""

from __future__ import annotations

from torch import Tensor

from engine.batch import DraftTree
from speculative.eagle3.candidates import Candidates
from speculative.eagle3.chain import Proposal
from speculative.eagle3.draft import Eagle3Draft
from speculative.eagle3.growth import Front, Growth, TreeSize
from speculative.eagle3.passes import DraftPasses
from speculative.views import DraftView


class Tree(Proposal):
    """Every level is one pass of K nodes a request. A branch sees exactly its own ancestors: their KV lies in
    a scratch beside the pages, so that no page is ever copied or overwritten by a guess."""

    def __init__(self, draft: Eagle3Draft, passes: DraftPasses, size: TreeSize, growth: Growth) -> None:
        self._draft, self._passes, self._size, self._growth = draft, passes, size, growth

    def __call__(self, view: DraftView, hidden: Tensor) -> DraftTree:
        found = self._growth.first(*self._draft.top(hidden, self._size.topk))
        window = None
        for _ in range(min(self._size.levels, view.width - 1) - 1):
            front = self._growth.front(view, found, window)
            given = self._passes.rows(hidden, front.source)
            found, hidden = self._descend(view, found, front, given)
            window = front.window
        return self._growth.keep(found, view.root(), view.width - 1)

    def _descend(
        self, view: DraftView, found: Candidates, front: Front, hidden: Tensor
    ) -> tuple[Candidates, Tensor]:
        """Run the front's nodes: their children join the candidates; and their outputs, [B * K, H]."""
        batch, topk = front.tokens.shape
        left = self._passes.branch(view, front.positions, front.tokens, hidden, front.window)
        children, logprobs, hidden = self._draft.top_after(left, topk)
        shape = (batch, topk, topk)
        found = self._growth.add(found, front.survivors, children.view(shape), logprobs.view(shape))
        return found, hidden
