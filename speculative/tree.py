"""The shape of a draft tree, derived on the device: depth, mask, and the tokens on each node's path.

Knows the canonical DraftTree only, no drafter. All results have static shapes; nothing is read on the host.
Legend: B requests, W width (nodes), D = W - 1 the longest path below the root.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from engine.batch import ROOT, DraftTree


@dataclass(frozen=True)
class TreeGeometry:
    """What follows from a DraftTree's parents. Values of absent nodes are in range and otherwise meaningless.

    tokens: int32 [B, W], the tree's. mask: bool [B, W, W], [b, i, j]: node i sees node j (its ancestors and
    itself; an absent node sees itself); None for chains, whose mask is the causal one. depths: int64 [B, W];
    None for chains, where a node's depth is its index.
    """

    tokens: Tensor
    depths: Tensor | None
    mask: Tensor | None

    @cached_property
    def depth(self) -> Tensor:
        """int64 [B, W], 0 at the root."""
        if self.depths is not None:
            return self.depths
        return torch.arange(self.tokens.shape[1], device=self.tokens.device).expand_as(self.tokens)

    @cached_property
    def ancestors(self) -> Tensor:
        """int32 [B * W, D]: drafted tokens from below the root to the node itself, in order, -1 padded."""
        batch, width = self.tokens.shape
        if self.mask is None:
            step = torch.arange(width, device=self.tokens.device)
            above = step[1:] <= step.unsqueeze(1)  # [node, column]
            paths = torch.where(above, self.tokens[:, 1:].unsqueeze(1), -1)
        else:
            paths = _tree_paths(self.tokens, self.mask, self.depth)
        return paths.reshape(batch * width, width - 1)


def chain(tokens: Tensor) -> DraftTree:
    """A chain in canonical form: tokens int32 [B, W], root first, each the parent of the next."""
    return DraftTree(tokens, _chain_parents(tokens.shape[1], tokens.device).expand_as(tokens))


@cache  # constants: a step that makes them anew spends a kernel on each
def _chain_parents(width: int, device: torch.device) -> Tensor:
    return torch.arange(ROOT, width - 1, dtype=torch.int32, device=device)


def geometry(tree: DraftTree, needs_mask: bool = True) -> TreeGeometry:
    """Depth and mask of every node. needs_mask=False promises chains: node i has parent i - 1 or is
    absent."""
    if not needs_mask:
        return TreeGeometry(tree.tokens, None, None)
    mask = _visibility(tree.parent)
    return TreeGeometry(tree.tokens, mask.sum(-1) - 1, mask)


def is_child(parent: Tensor) -> Tensor:
    """bool [B, W, W], [b, i, j]: whether node j is a child of node i. Absent nodes are nobody's."""
    return parent.unsqueeze(1) == torch.arange(parent.shape[1], device=parent.device).view(1, -1, 1)


def _visibility(parent: Tensor) -> Tensor:
    """bool [B, W, W]: each node with its ancestors, by pointer jumping (Wyllie 1979): after round k a node
    sees its 2^k nearest, and its pointer leads 2^k up. Column and row W stand for "above the root"."""
    batch, width = parent.shape
    padded = torch.nn.functional.pad(parent, (0, 1), value=-1).long()
    jump = torch.where(padded < 0, width, padded)
    sees = torch.eye(width + 1, width, dtype=torch.bool, device=parent.device).repeat(batch, 1, 1)
    for _ in range((width - 1).bit_length()):
        sees = sees | sees.gather(1, jump.unsqueeze(-1).expand_as(sees))
        jump = jump.gather(1, jump)
    return sees[:, :width]


def _tree_paths(tokens: Tensor, sees: Tensor, depth: Tensor) -> Tensor:
    """int32 [B, W, D]: the token of the ancestor at depth d + 1 in column d; ancestors have distinct
    depths."""
    batch, width = tokens.shape
    columns = depth.unsqueeze(1).expand(batch, width, width)
    values = torch.where(sees, tokens.unsqueeze(1) + 1, 0)  # one more, so that adding to zero marks presence
    paths = torch.zeros(batch, width, width, dtype=torch.int32, device=tokens.device)
    paths.scatter_add_(2, columns, values.int())
    return paths[:, :, 1:] - 1
