"""Plans that may be fast for a product, and what to try beside one that is. Free of torch.

Knows what a GPU's blocks can hold, nothing of how fast a plan is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from engine.kernel_choices.plans import BEST, NORM_GATED, ROWS, TILE, Place, Plan

SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Of the rows kernel, whose steps are no loop; beyond these a plan takes seconds to compile, or spills.
MOST_UNROLLED = 72  # steps, each token's its own
MOST_PRODUCTS = 2560  # of a thread
MOST_HELD = 144  # registers of a thread for sums and weights
MOST_PADDING = 1.4  # of K, by blocks that reach past its end


@dataclass(frozen=True)
class Card:
    """What of a GPU bounds a plan: multiprocessors, and bytes of shared memory that a block may have."""

    processors: int
    shared: int


# What won on an H200 comes first, by how often; then what is far from it.
ROWS_STARTS = (
    Plan(ROWS, 4, 512, 2), Plan(ROWS, 1, 1024, 8), Plan(ROWS, 2, 1024, 4), Plan(ROWS, 8, 256, 4),
    Plan(ROWS, 4, 1024, 4), Plan(ROWS, 4, 2048, 8), Plan(ROWS, 2, 512, 1), Plan(ROWS, 16, 64, 4),
)  # fmt: skip
TILE_STARTS = (
    Plan(TILE, 64, 128, 4, 4, swap=True), Plan(TILE, 64, 128, 4, 5, 2, swap=True), Plan(TILE, 64, 128, 4, 5),
    Plan(TILE, 64, 64, 2, 6, 4, swap=True), Plan(TILE, 128, 128, 8, 4, swap=True), Plan(TILE, 32, 128, 4, 7),
    Plan(TILE, 16, 256, 4, 4), Plan(TILE, 32, 64, 4, 3, 2), Plan(TILE, 64, 64, 4, 3),
    Plan(TILE, 32, 64, 4, 4),
)  # fmt: skip


NORMED = 3  # plans of either kernel that are tried with the norm inside as well


def starts(place: Place, card: Card, known: Sequence[Plan] = (), most: int | None = None) -> list[Plan]:
    """Plans `known` to be fast for the same matrix elsewhere, or for one like it, with and without the norm;
    then plans of every kind, far apart, each with the gate if the stage has one. most: so many at most, and
    none but known ones where some of those can serve."""
    both = [plan for each in known for plan in (each, replace(each, norm=not each.norm))]
    found = [plan for plan in both if fits(plan, place, card)]
    if most is None or not found:
        found += _usual(place, card)
    return list(dict.fromkeys(found))[:most]


def _usual(place: Place, card: Card) -> list[Plan]:
    """The kernels in turns, what won most often first."""
    turns = zip_longest(_kind(ROWS_STARTS, place, card), _kind(TILE_STARTS, place, card), fillvalue=())
    return [plan for pair in turns for plans in pair for plan in plans]


def _kind(plans: Sequence[Plan], place: Place, card: Card) -> list[tuple[Plan, ...]]:
    """Those that fit, the first NORMED of them together with the same that have the norm inside."""
    gate, split = place.stage == NORM_GATED, place.stage != BEST
    plain = [replace(plan, gate=gate, split=plan.split if split else 1) for plan in plans]
    found = [plan for plan in dict.fromkeys(plain) if fits(plan, place, card)]
    first = [plan for plan in found if plan.split == 1 and fits(replace(plan, norm=True), place, card)][
        :NORMED
    ]
    return [(plan, replace(plan, norm=True)) if plan in first else (plan,) for plan in found]


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
    near += [replace(plan, norm=not plan.norm), replace(plan, gate=not plan.gate)]
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
        each, steps = plan.weights_held(), _padded(plan, place.k) // (plan.block_k * plan.split)
        unrolled = place.tokens * steps
        return 4 <= each <= 64 and unrolled <= MOST_UNROLLED and unrolled * each <= MOST_PRODUCTS and (
            place.tokens * each <= 64 or _folded(place, each) <= MOST_HELD
        )  # fmt: skip
    side = max(16, place.tokens)
    held = plan.stages * (plan.block_n + side) * plan.block_k * SIZES[place.dtype]
    return plan.stages >= 2 and held <= card.shared and 1 <= plan.block_n * side // threads <= 64


def _padded(plan: Plan, k: int) -> int:
    step = plan.block_k * plan.split
    return -(-k // step) * step


def _folded(place: Place, each: int) -> int:
    """Registers of a thread whose neighbouring columns share a sum: sums, then weights in fp32 beside those
    that are on their way."""
    return place.tokens * each * SIZES[place.dtype] // 16 + 2 * each
