"""Acceptance of sampled drafts by the ratio test with the normalised residual: torch, on the device.

A draft x drawn from q is kept with probability min(1, p(x) / q(x)); the first one that is not is replaced by
a draw from max(p - q, 0), normalised. What is emitted follows p exactly. Leviathan, Kalman, Matias 2023,
Algorithm 1; Chen et al. 2023, Algorithm 2. Knows neither model. Nothing is read on the host.
Legend: B requests, W width (nodes), V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.batch import DraftTree
from speculative.accept import Accepted


def accept_ratio(tree: DraftTree, target_probs: Tensor, accept_coins: Tensor, draw_coins: Tensor) -> Accepted:
    """Walk every request's chain of sampled drafts.

    tree: chains (node i has parent i - 1 or is absent) whose probs fp32 [B, W - 1, V] are the distributions
    that the drafts were drawn from. target_probs: fp32 [B, W, V], the target's distribution after each node,
    after temperature and all filters, normalised; a one-hot row makes its test greedy. accept_coins,
    draw_coins: float64 [B, W] in (0, 1), of the test of the draft below each node and of the draw after it.

    The run ends at the first rejected draft with a draw from the residual there (from p, should rounding
    leave nothing of it), at an absent one or after the last with a draw from p.
    """
    assert tree.probs is not None, "the ratio test needs the distributions that the drafts were drawn from"
    width = tree.tokens.shape[1]
    node = torch.arange(width, device=tree.tokens.device)
    present = tree.parent[:, 1:] == node[:-1]
    kept = present & _passes(tree.tokens[:, 1:], tree.probs, target_probs[:, :-1], accept_coins[:, :-1])
    last = kept.int().cumprod(1).sum(1)  # int64 [B]: where the walk ends
    rejected = torch.nn.functional.pad(present, (0, 1)).gather(1, last.unsqueeze(1))
    drawn = draw_token(_last_probs(target_probs, tree.probs, last, rejected), _at(draw_coins, last))
    path = node <= last.unsqueeze(1)
    emitted = torch.nn.functional.pad(tree.tokens[:, 1:], (0, 1)).masked_fill(~path, 0)
    emitted = emitted.scatter(1, last.unsqueeze(1), drawn.int().unsqueeze(1))
    return Accepted(torch.where(path, node, -1).int(), last.int(), emitted)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """float64 [..., V]: max(p - q, 0), normalised; p, normalised, where nothing is left of it."""
    left = (p.double() - q.double()).clamp_min(0)
    left = torch.where(left.sum(-1, keepdim=True) > 0, left, p.double())
    return left / left.sum(-1, keepdim=True)


def draw_token(weights: Tensor, coin: Tensor) -> Tensor:
    """int64 [B]: the first token at which the running sum of weights, float64 [B, V], exceeds coin * total.

    coin: float64 [B] in (0, 1). A token of weight zero is never chosen.
    """
    edges = weights.cumsum(1)
    token = torch.arange(weights.shape[1], device=weights.device)
    possible = weights > 0
    reached = possible & (edges > (coin * edges[:, -1]).unsqueeze(1))
    first = torch.where(reached, token, weights.shape[1]).amin(1)
    return torch.minimum(first, torch.where(possible, token, 0).amax(1))  # rounding may leave nothing reached


def _passes(drafts: Tensor, q: Tensor, p: Tensor, coins: Tensor) -> Tensor:
    """bool [B, W - 1]: whether coin < p(x) / q(x) for each draft x; one that q excludes cannot have been
    drawn."""
    of_target, of_draft = (x.gather(2, drafts.long().unsqueeze(2)).squeeze(2).double() for x in (p, q))
    return (of_draft > 0) & (coins * of_draft < of_target)


def _last_probs(p: Tensor, q: Tensor, last: Tensor, rejected: Tensor) -> Tensor:
    """float64 [B, V]: what the token after node `last` is drawn from; rejected: bool [B, 1]."""
    here = _at(p, last).double()
    if q.shape[1] == 0:
        return here
    return torch.where(rejected, residual(here, _at(q, last.clamp_max(q.shape[1] - 1))), here)


def _at(values: Tensor, node: Tensor) -> Tensor:
    """values [B, n, ...] at node int64 [B] -> [B, ...]."""
    return values[torch.arange(len(node), device=node.device), node]
