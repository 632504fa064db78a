"""Runs of a given mean length, whatever was drafted, to measure the cost of an engine.

The target did not choose what they emit, so no output of them means anything. In plain torch: the reference
of the forced walk of kernels/accept_tree.py. Knows no drafter and no model. Nothing is read on the host.
Legend: B requests, W width (nodes), R table rows, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor
from torch.nn import functional

from engine.batch import DraftTree
from engine.sampling.rng import PURPOSE_SIMULATED, RESOLUTION, salt, uniform
from speculative.accept import Accepted
from speculative.tree import is_child


@dataclass(frozen=True)
class Forced:
    """Every run has floor(mean) tokens or, by the request's own coin at its position, one more: drafts along
    the path of first children, then the target's token there; fewer only where drafts are missing or the
    answer ends. mean: tokens, 1 or more. keys: int64 [R], what the coins of a table row are made of."""

    mean: float
    keys: Tensor

    def __post_init__(self) -> None:
        assert self.mean >= 1, f"a run of {self.mean} tokens: a step emits one or more"

    @property
    def least(self) -> int:
        """Drafts of a short run."""
        return int(self.mean) - 1

    @property
    def share(self) -> float:
        """Of runs with one more."""
        return self.mean - int(self.mean)

    @property
    def chance(self) -> int:
        """`share`, as how many of the 2^RESOLUTION values of a coin lie below it."""
        return max(0, math.ceil(Fraction(self.share) * (1 << RESOLUTION) - Fraction(1, 2)))

    @property
    def salt(self) -> int:
        """Of the stream that the coins come from."""
        return salt(PURPOSE_SIMULATED)

    def walk(self, tree: DraftTree, target: Tensor, start: Tensor, rows: Tensor) -> Accepted:
        """Instead of speculative.accept.accept: rows int64 [B]; start int32 [B] lengths before the pass."""
        coins = uniform(self.keys[rows], start.long() + 1, PURPOSE_SIMULATED)
        return first_children(tree, target, self.drafts(coins))

    def drawn(self, tree: DraftTree, target_probs: Tensor, coins: Tensor) -> Accepted:
        """Instead of the ratio test: target_probs fp32 [B, W, V]; coins: float64 [B, W], of which the first
        decides."""
        return first_children(tree, target_probs.argmax(-1).int(), self.drafts(coins[:, 0]))

    def drafts(self, coin: Tensor) -> Tensor:
        """int32 [B] drafts to take, by coins float64 [B] in (0, 1)."""
        return self.least + (coin < self.share).int()


def first_children(tree: DraftTree, target: Tensor, drafts: Tensor) -> Accepted:
    """The path of first children, drafts (int32 [B]) nodes of it where there are so many, then the target's
    token there: target int32 [B, W]. Past a run `emitted` is 0."""
    width = target.shape[1]
    path = _path(tree)
    depth = torch.arange(width, device=path.device)
    on_path = (path < width) & (depth <= drafts.unsqueeze(1))
    n_accepted = on_path.sum(1, dtype=torch.int32) - 1
    last = n_accepted.unsqueeze(1)
    nodes = torch.where(on_path, path, 0)
    following = torch.roll(tree.tokens.gather(1, nodes), -1, 1)  # what comes after a node on the path
    emitted = torch.where(depth < last, following, target.gather(1, nodes))
    index = torch.where(on_path, path, -1).int()
    return Accepted(index, n_accepted, torch.where(depth <= last, emitted, 0).int())


def _path(tree: DraftTree) -> Tensor:
    """int64 [B, W]: the root, its first child, that one's, and so on; W past the end."""
    width = tree.parent.shape[1]
    node = torch.arange(width, device=tree.parent.device)
    first = torch.where(is_child(tree.parent), node, width).amin(-1)
    first = functional.pad(first, (0, 1), value=width)
    path = [torch.zeros(len(first), 1, dtype=torch.int64, device=first.device)]
    for _ in range(width - 1):
        path.append(first.gather(1, path[-1]))
    return torch.cat(path, dim=1)
