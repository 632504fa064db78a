"""Drafts drawn at random from the drafter's own distribution, and that distribution over the target's
vocabulary.

For drafters whose drafts are judged by the ratio test. Knows neither a draft model nor the target.
Legend: B requests, W width, Vd draft vocabulary, V target vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine.batch import DraftTree
from speculative.tree import chain


def draw_drafts(
    logits: Tensor, temperature: Tensor, coins: Tensor, ids: Tensor | None, vocab: int
) -> tuple[Tensor, Tensor]:
    """One draft a request: (target ids int32 [B], the distribution q it was drawn from, fp32 [B, V]).

    logits: [B, Vd] in fp32 or the model's precision. temperature: fp32 [B]; a row at 0 takes its largest
    logit, and q is 1 there. coins: float64 [B] in (0, 1). ids: int64 [Vd] target id of each draft id,
    distinct; None: the vocabularies are one.
    """
    logits = logits.float().nan_to_num()  # of a broken draft: any distribution will do, as long as it is one
    greedy = (temperature == 0).unsqueeze(1)
    weights = (
        (logits - logits.amax(-1, keepdim=True)) / torch.where(greedy, 1.0, temperature.unsqueeze(1))
    ).exp()
    best = torch.zeros_like(weights).scatter_(1, logits.argmax(-1, keepdim=True), 1.0)
    share = torch.where(greedy, best, weights / weights.sum(-1, keepdim=True))
    drawn = _pick(share, coins)
    if ids is None:
        return drawn.int(), share
    q = torch.zeros(logits.shape[0], vocab, dtype=share.dtype, device=share.device)
    return ids[drawn].int(), q.index_copy_(1, ids, share)


def sampled_chain(root: Tensor, drafts: Sequence[Tensor], probs: Sequence[Tensor]) -> DraftTree:
    """The chain of `drafts` (int32 [B] each) behind `root` int32 [B], with the fp32 [B, V] each was drawn
    from."""
    return replace(chain(torch.stack((root, *drafts), dim=1)), probs=torch.stack(tuple(probs), dim=1))


def _pick(share: Tensor, coins: Tensor) -> Tensor:
    """int64 [B]: inverse CDF. A token of probability zero is never chosen: the target stays below the sum."""
    edges = share.double().cumsum(-1)
    total = edges[:, -1]
    target = torch.minimum(coins * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(edges, target.unsqueeze(1), right=True).squeeze(1)
