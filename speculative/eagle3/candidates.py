"""The candidates of a dynamic draft tree, and which of them are kept.

Pure tensor arithmetic of static shapes; knows no model.
Source: Li et al. 2024 (EAGLE-2), sec. 4 (expansion by cumulative score, then a choice among all candidates).
Legend: B requests, K top-k, C candidates so far (K, then K * K for every further level), N kept ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.batch import ROOT, DraftTree


@dataclass(frozen=True)
class Candidates:
    """tokens: int32 [B, C]. scores: fp32 [B, C], natural logs of the product of the draft's probabilities
    along the path. parent: int64 [B, C], index of another candidate, ROOT on the first level.

    A child scores at most what its parent does, and comes later.
    """

    tokens: Tensor
    scores: Tensor
    parent: Tensor


def first_level(tokens: Tensor, logprobs: Tensor) -> Candidates:
    """The K best after the root: int32 and fp32 [B, K]."""
    scores = _ordered(logprobs)
    return Candidates(tokens, scores, torch.full_like(tokens, ROOT, dtype=torch.int64))


def next_level(found: Candidates, survivors: Tensor, tokens: Tensor, logprobs: Tensor) -> Candidates:
    """K children of every survivor are added: survivors int64 [B, K]; tokens, logprobs [B, K, K]."""
    above = found.scores.gather(1, survivors).unsqueeze(2)
    scores = (above + _ordered(logprobs)).flatten(1)  # never view(B, -1): B may be 0
    parents = survivors.repeat_interleave(tokens.shape[2], dim=1)
    return Candidates(
        torch.cat((found.tokens, tokens.flatten(1)), dim=1),
        torch.cat((found.scores, scores), dim=1),
        torch.cat((found.parent, parents), dim=1),
    )


def best_of(scores: Tensor, count: int) -> Tensor:
    """int64 [B, count] indices of the largest, larger scores first, of equals the earlier."""
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :count]


def keep(found: Candidates, root: Tensor, count: int) -> DraftTree:
    """The tree of root (int32 [B]) and the `count` best candidates.

    The choice is closed under parents, ties included: an equal parent comes earlier.
    """
    kept = best_of(found.scores, count).sort(dim=1).values
    parents = found.parent.gather(1, kept)
    nodes = torch.searchsorted(kept, parents.contiguous()) + 1  # node 0 is the root
    parent = torch.cat((torch.full_like(kept[:, :1], ROOT), torch.where(parents < 0, 0, nodes)), dim=1)
    tokens = torch.cat((root.unsqueeze(1), found.tokens.gather(1, kept)), dim=1)
    return DraftTree(tokens, parent.int())


def _ordered(logprobs: Tensor) -> Tensor:
    """Logs of probabilities: rounding may have left one above 0, and not-a-number counts as impossible."""
    return logprobs.nan_to_num(nan=float("-inf"), neginf=float("-inf")).clamp_max(0.0)
