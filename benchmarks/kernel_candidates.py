"""Plans that may be fast for a product, and what to try beside one that is. Free of torch.

Knows what a GPU's blocks can hold, nothing of how fast a plan is.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from engine.kernel_choices.plans import BEST, LINEAR, NORM_GATED, ROWS, TILE, Place, Plan

SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}
MOST_UNROLLED = 64  # steps of the rows kernel, each token's its own: they are not a loop
MOST_PADDING = 1.4  # of K, by blocks that reach past its end


@dataclass(frozen=True)
class Card:
    """What of a GPU bounds a plan: multiprocessors, and bytes of shared memory that a block may have."""

    processors: int
    shared: int


def starts(place: Place, card: Card) -> list[Plan]:
    """Plans of every kind, far apart."""
    found = [
        Plan(ROWS, 4, 2048, 8), Plan(ROWS, 1, 1024, 4), Plan(ROWS, 2, 512, 4), Plan(ROWS, 4, 512, 4),
        Plan(ROWS, 8, 256, 4), Plan(ROWS, 16, 64, 4), Plan(ROWS, 4, 256, 4, split=2),
        Plan(TILE, 64, 128, 4, 4, swap=True), Plan(TILE, 64, 128, 4, 4), Plan(TILE, 32, 128, 4, 4),
        Plan(TILE, 16, 256, 4, 4), Plan(TILE, 32, 64, 4, 3, split=2), Plan(TILE, 64, 64, 4, 4, 4, swap=True),
        Plan(TILE, 128, 64, 8, 4, swap=True),
    ]  # fmt: skip
    return list(
        dict.fromkeys(plan for base in found for plan in _fusions(base, place) if fits(plan, place, card))
    )


def neighbours(plan: Plan, place: Place, card: Card) -> list[Plan]:
    """Plans that differ from `plan` in one size, twice or half as large, or in one choice."""
    near = [
        replace(plan, **{name: value})
        for name in ("block_n", "block_k", "warps", "split")
        for value in (getattr(plan, name) // 2, getattr(plan, name) * 2)
        if value
    ]
    if plan.kernel == TILE:
        near += [replace(plan, stages=stages) for stages in (plan.stages - 1, plan.stages + 1)]
        near.append(replace(plan, swap=not plan.swap))
    near += _fusions(plan, place)
    return [other for other in dict.fromkeys(near) if other != plan and fits(other, place, card)]


def fits(plan: Plan, place: Place, card: Card) -> bool:
    """Whether a plan can compute the product, and is not absurd in registers, memory, padding, programs."""
    if place.problem(plan) or plan.warps not in (1, 2, 4, 8, 16):
        return False
    if _padded(plan, place.k) > MOST_PADDING * place.k:
        return False
    programs = -(-place.n // plan.block_n) * plan.split
    if programs < card.processors // 4 or (plan.split > 1 and programs > 16 * card.processors):
        return False
    threads = 32 * plan.warps
    if plan.kernel == ROWS:
        each = plan.block_n * plan.block_k // threads
        steps = _padded(plan, place.k) // (plan.block_k * plan.split)
        return 4 <= each <= 64 and place.tokens * each <= 128 and place.tokens * steps <= MOST_UNROLLED
    side = max(16, place.tokens)
    held = plan.stages * (plan.block_n + side) * plan.block_k * SIZES[place.dtype]
    return plan.stages >= 2 and held <= card.shared and 1 <= plan.block_n * side // threads <= 64


def _padded(plan: Plan, k: int) -> int:
    step = plan.block_k * plan.split
    return -(-k // step) * step


def _fusions(plan: Plan, place: Place) -> list[Plan]:
    """The plan with and without what its stage could fuse."""
    norms = (False,) if place.stage == LINEAR else (False, True)
    gates = (False, True) if place.stage == NORM_GATED else (False,)
    split = 1 if place.stage == BEST else plan.split
    return [
        replace(plan, norm=norm, gate=gate, split=split) for norm, gate in itertools.product(norms, gates)
    ]
