"""Found continuations: the value that lookups return, how two lookups merge, and how it becomes a draft tree.

Knows neither where a continuation was found nor what is done with the tree. Nothing is read on the host.
Legend: B requests, K continuations, D tokens of each, W width (nodes).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from engine.batch import ABSENT, ROOT, DraftTree
from speculative.views import DraftView


@dataclass(frozen=True)
class Found:
    """Continuations of each request's known tokens, best first, with distinct first tokens.

    length: int32 [B, K] tokens of context that were matched, 0 where there is no such continuation. tokens:
    int32 [B, K, D], -1 from where a continuation ends.
    """

    length: Tensor
    tokens: Tensor


@dataclass(frozen=True)
class MatchOptions:
    """min_match, max_match: tokens of context. frequent: of several places with the longest match the most
    common next token is taken, else the last place's."""

    min_match: int
    max_match: int
    frequent: bool = False


class Lookup(Protocol):
    """A place to look for continuations."""

    def find(self, view: DraftView, branches: int, depth: int) -> Found:
        """Up to `branches` continuations of `depth` >= 1 tokens of each request in the view."""


def merge(first: Found, second: Found) -> Found:
    """The K best of both by match length. `first` wins ties; of two with one first token the better stays."""
    kept = first.length.shape[1]
    length = torch.cat((first.length, second.length), dim=1)
    tokens = torch.cat((first.tokens, second.tokens), dim=1)
    order = length.argsort(dim=1, descending=True, stable=True)
    length = length.gather(1, order)
    tokens = tokens.gather(1, order.unsqueeze(2).expand_as(tokens))
    head = tokens[:, :, 0]
    same = head.unsqueeze(2) == head.unsqueeze(1)
    again = same.tril(-1).any(2)  # a better one starts with the same token
    length = torch.where(again, 0, length)
    order = length.argsort(dim=1, descending=True, stable=True)[:, :kept]
    chosen = length.gather(1, order)
    index = order.unsqueeze(2).expand(-1, -1, tokens.shape[2])
    return Found(chosen, torch.where(chosen.unsqueeze(2) > 0, tokens.gather(1, index), -1))


def tree_of(root: Tensor, found: Found, width: int) -> DraftTree:
    """The tree of `width` nodes: the best continuation first and whole, then the next as far as it fits.

    root: int32 [B]. A narrower tree therefore keeps the best chain. Missing tokens are absent nodes.
    """
    nodes = torch.cat((root.unsqueeze(1), found.tokens.flatten(1)[:, : width - 1]), dim=1)
    above, absent = _shapes(width, found.tokens.shape[2], root.device)
    return DraftTree(nodes.clamp_min(0), torch.where(nodes >= 0, above, absent))


@cache
def _shapes(width: int, depth: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """int32 [W]: the parent of each node, and ABSENT for each. A continuation has `depth` nodes."""
    before = torch.arange(width, dtype=torch.int32, device=device) - 1
    above = torch.where(before % depth == 0, 0, before)
    above[0] = ROOT
    return above, torch.full_like(before, ABSENT)
