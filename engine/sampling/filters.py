"""Top-k, top-p and min-p on unnormalised weights, without sorting: the cut is found by bisecting the
floats' bits.

Knows weights and limits only. Thirty counting passes over [N, V] cost less than one sort on a CPU, and the
result is the same for every batch. Legend: N rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.sampling.choose import sum_rows

_BITS = 30  # float32 values below 2 have no higher bit


def apply_filters(weights: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """`weights`, fp32 [N, V], with everything that the filters drop set to zero in place; not renormalised.

    weights: exp((logit - largest logit) / temperature), so within [0, 1] and 1 at the top. Applied in this
    order, each on what the one before left: top-k keeps the k heaviest tokens (int32 [N]; 0: all). Top-p
    (fp32 [N]; 1: all) keeps the fewest heaviest tokens whose mass reaches p (Holtzman et al. 2020, sec. 3.1).
    Min-p (fp32 [N]; 0: all) keeps tokens at least min_p times as likely as the likeliest (Nguyen et al.
    2024). Among tokens of equal weight the lower ids are kept first. The likeliest token always stays.
    """
    scratch = _Scratch(*(torch.empty_like(weights) for _ in range(3)))
    vocab = weights.shape[1]
    count = torch.where(top_k > 0, top_k, vocab).clamp_max(vocab).float()
    _keep_heaviest(weights, count, top_k > 0, scratch, by_mass=False)
    _keep_heaviest(weights, top_p * sum_rows(weights), top_p < 1, scratch, by_mass=True)
    return weights.mul_(torch.ge(weights, min_p.unsqueeze(1), out=scratch.above))


@dataclass(frozen=True)
class _Scratch:
    """fp32 [N, V] each. Comparisons write 0.0 and 1.0 into them: on the CPU that is many times faster than
    sums and products of bool tensors, and a fresh tensor of this size costs more than filling it."""

    above: Tensor
    level: Tensor
    rank: Tensor


def _keep_heaviest(
    weights: Tensor, goal: Tensor, active: Tensor, scratch: _Scratch, *, by_mass: bool
) -> None:
    """Zero all but the fewest heaviest tokens that reach `goal` (their number or their mass), where
    `active`."""
    above, level, rank = scratch.above, scratch.level, scratch.rank
    cut = torch.where(active, _cut(weights, goal, above, by_mass=by_mass), 0).unsqueeze(1)
    torch.gt(weights, cut, out=above)
    missing = goal - sum_rows(torch.mul(above, weights, out=level) if by_mass else above)
    ties = (missing / cut.squeeze(1) if by_mass else missing).ceil().clamp_min(1)
    torch.eq(weights, cut, out=level)
    torch.cumsum(level, -1, out=rank)
    level.mul_(torch.le(rank, ties.unsqueeze(1), out=rank))
    weights.mul_(above.add_(level))


def _cut(weights: Tensor, goal: Tensor, kept: Tensor, *, by_mass: bool) -> Tensor:
    """fp32 [N]: the largest weight whose like and heavier tokens reach `goal`; 0 where even all do not.

    Floats that are not negative are ordered as their bits are. kept: scratch, fp32 [N, V].
    """
    cut = torch.zeros_like(goal, dtype=torch.int32)
    for bit in reversed(range(_BITS)):
        trial = (cut + (1 << bit)).view(torch.float32).unsqueeze(1)
        torch.ge(weights, trial, out=kept)
        reached = sum_rows(kept.mul_(weights) if by_mass else kept) >= goal
        cut.add_(reached, alpha=1 << bit)
    return cut.view(torch.float32)
