"""How a draft tree grows, level by level, in plain torch: the reference of kernels/draft_tree.py.

Knows candidates and the scratch that branches write to; no model.
Source: Li et al. 2024 (EAGLE-2), sec. 4. Legend: B requests, K top-k, M nodes continued so far.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.batch import DraftTree
from speculative.eagle3.candidates import Candidates, best_of, first_level, keep, next_level
from speculative.eagle3.passes import Window
from speculative.views import DraftView


@dataclass(frozen=True)
class TreeSize:
    """topk: nodes continued at a level. levels: the deepest draft. first_scratch, scratch: where a row's own
    slots lie, as in DraftHost; (levels - 1) * topk of them."""

    topk: int
    levels: int
    first_scratch: int
    scratch: int


@dataclass(frozen=True)
class Front:
    """The nodes that are continued next. survivors: int64 [B, K] among the candidates; tokens: int32 [B, K];
    source: int64 [B * K], their parents among the nodes of the level before, at the first among the B roots;
    positions: int64 [B * K]; window: of all nodes continued so far, these last."""

    survivors: Tensor
    tokens: Tensor
    source: Tensor
    positions: Tensor
    window: Window


class Growth(Protocol):
    """The operations of a tree that grows."""

    def first(self, tokens: Tensor, logprobs: Tensor) -> Candidates:
        """The K best after the root: int32 and fp32 [B, K]."""

    def add(self, found: Candidates, survivors: Tensor, tokens: Tensor, logprobs: Tensor) -> Candidates:
        """K children of every survivor: survivors int64 [B, K]; tokens int32, logprobs fp32 [B, K, K]."""

    def front(self, view: DraftView, found: Candidates, window: Window | None) -> Front:
        """All of the first level, in their order, or the best K of the children added last, with their
        parents' ancestors; window: of the level before, None at the first."""

    def keep(self, found: Candidates, root: Tensor, count: int) -> DraftTree:
        """The tree of root (int32 [B]) and the `count` best candidates."""


class TorchGrowth:
    """Plain torch, on every device."""

    def __init__(self, size: TreeSize) -> None:
        self._size = size

    def first(self, tokens: Tensor, logprobs: Tensor) -> Candidates:
        return first_level(tokens, logprobs)

    def add(self, found: Candidates, survivors: Tensor, tokens: Tensor, logprobs: Tensor) -> Candidates:
        return next_level(found, survivors, tokens, logprobs)

    def front(self, view: DraftView, found: Candidates, window: Window | None) -> Front:
        topk, batch = self._size.topk, len(found.tokens)
        device = found.tokens.device
        own = torch.eye(topk, dtype=torch.bool, device=device).expand(batch, topk, topk)
        if window is None:
            child = torch.arange(topk, device=device).expand(batch, topk)
            first, depth, seen, above = 0, 0, own.contiguous(), 1
        else:
            first, depth = found.tokens.shape[1] - topk * topk, window.seen.shape[2] // topk
            above = topk
            child = best_of(found.scores[:, first:], topk)
            index = (child // topk).unsqueeze(2).expand(-1, -1, window.seen.shape[2])
            seen = torch.cat((window.seen.gather(1, index), own), dim=2)
        source = torch.arange(batch, device=device).unsqueeze(1) * above + child // topk
        survivors = first + child
        return Front(
            survivors,
            found.tokens.gather(1, survivors),
            source.view(-1),
            (view.seq_lens.device.long() + depth).repeat_interleave(topk),
            self._window(view, depth + 1, seen),
        )

    def keep(self, found: Candidates, root: Tensor, count: int) -> DraftTree:
        return keep(found, root, count)

    def _window(self, view: DraftView, levels: int, seen: Tensor) -> Window:
        """The first slots of each row's scratch, those of the last level its own."""
        size = self._size
        inner = torch.arange(levels * size.topk, device=view.rows.device)
        slots = size.first_scratch + view.rows.unsqueeze(1) * size.scratch + inner
        return Window(slots, slots[:, -size.topk :].reshape(-1), seen)
