"""A tree of drafts: at every level the most probable K nodes are continued, and the best of all are verified.

Knows the passes, the scratch and the candidates; nothing of acceptance.
Source: Li et al. 2024 (EAGLE-2), sec. 4. Legend: B requests, W width, K top-k, H hidden size of the draft.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.batch import DraftTree
from speculative.base import DraftView
from speculative.eagle3.candidates import Candidates, best_of, first_level, keep, next_level
from speculative.eagle3.chain import Proposal
from speculative.eagle3.draft import Eagle3Draft
from speculative.eagle3.passes import DraftPasses, Window


@dataclass(frozen=True)
class TreeSize:
    """topk: nodes continued at a level. levels: the deepest draft. first_scratch, scratch: where a row's own
    slots lie, as in DraftHost; (levels - 1) * topk of them."""

    topk: int
    levels: int
    first_scratch: int
    scratch: int


@dataclass(frozen=True)
class _Front:
    """The nodes that are continued next. survivors: int64 [B, K] among the candidates; hidden: [B, K, H] that
    goes in beside their tokens; window: of all nodes continued so far, these last."""

    survivors: Tensor
    hidden: Tensor
    window: Window


class Tree(Proposal):
    """Every level is one pass of K nodes a request. A branch sees exactly its own ancestors: their KV lies in
    a scratch beside the pages, so that no page is ever copied or overwritten by a guess."""

    def __init__(self, draft: Eagle3Draft, passes: DraftPasses, size: TreeSize) -> None:
        self._draft, self._passes, self._size = draft, passes, size

    def __call__(self, view: DraftView, hidden: Tensor) -> DraftTree:
        found = first_level(*self._draft.top(hidden, self._size.topk))
        levels = min(self._size.levels, view.width - 1)
        if levels > 1:
            front = self._first_front(view, found, hidden)
            for depth in range(levels - 1):
                front = front if depth == 0 else self._next_front(view, found, front, depth)
                found, front = self._descend(view, found, front, depth)
        return keep(found, view.root(), view.width - 1)

    def _descend(
        self, view: DraftView, found: Candidates, front: _Front, depth: int
    ) -> tuple[Candidates, _Front]:
        """Run the front's nodes: their children join the candidates, their own outputs the front."""
        topk = self._size.topk
        tokens = found.tokens.gather(1, front.survivors)
        left = self._passes.branch(view, depth, tokens, front.hidden.flatten(0, 1), front.window)
        children, logprobs, hidden = self._draft.top_after(left, topk)
        shape = (len(tokens), topk, topk)
        found = next_level(found, front.survivors, children.view(shape), logprobs.view(shape))
        return found, _Front(front.survivors, hidden.view(front.hidden.shape), front.window)

    def _first_front(self, view: DraftView, found: Candidates, hidden: Tensor) -> _Front:
        """All of the first level, in their order; each continues the same last entry."""
        batch, topk = found.tokens.shape
        every = torch.arange(topk, device=hidden.device).expand(batch, topk)
        seen = torch.eye(topk, dtype=torch.bool, device=hidden.device).expand(batch, topk, topk)
        return _Front(
            every,
            hidden.unsqueeze(1).expand(-1, topk, -1).contiguous(),
            Window(self._scratch(view, 1), seen.contiguous()),
        )

    def _next_front(self, view: DraftView, found: Candidates, ran: _Front, depth: int) -> _Front:
        """The best of the last level's children, with their parents' outputs and ancestors."""
        topk = self._size.topk
        first = found.tokens.shape[1] - topk * topk
        child = best_of(found.scores[:, first:], topk)
        parent = child // topk
        hidden = ran.hidden.gather(1, parent.unsqueeze(2).expand(-1, -1, ran.hidden.shape[2]))
        above = ran.window.seen.gather(1, parent.unsqueeze(2).expand(-1, -1, ran.window.seen.shape[2]))
        own = torch.eye(topk, dtype=torch.bool, device=child.device).expand(len(child), topk, topk)
        window = Window(self._scratch(view, depth + 1), torch.cat((above, own), dim=2))
        return _Front(first + child, hidden, window)

    def _scratch(self, view: DraftView, levels: int) -> Tensor:
        """int64 [B, levels * K]: the first slots of each row's scratch."""
        size = self._size
        inner = torch.arange(levels * size.topk, device=view.rows.device)
        return size.first_scratch + view.rows.unsqueeze(1) * size.scratch + inner
