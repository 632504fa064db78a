"""Plans that may be fast for a product, and what to try beside one that is. Free of torch.

Knows what a GPU's blocks can hold, nothing of how fast a plan is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from engine.kernel_choices.plans import (
    BEST,
    CUDA,
    DIRECT,
    EVEN,
    HALVES,
    LEAN_TOKENS,
    MOST_TOKENS,
    NORM_GATED,
    PAIR,
    ROWS,
    SIZES,
    TILE,
    WAVES,
    WIDE,
    Place,
    Plan,
)

# Of the kernels whose steps are no loop; beyond these a plan takes seconds to compile, or spills.
MOST_UNROLLED = 72  # steps; of the rows kernel, each token's its own
MOST_PRODUCTS = 2560  # of a thread
MOST_HELD = 144  # registers of a thread for sums and weights
MOST_DIRECT = 208  # registers of a thread of the direct kernel, which leaves some for addresses
MOST_PADDING = 1.4  # of K, by blocks that reach past its end


@dataclass(frozen=True)
class Card:
    """What of a GPU bounds a plan: multiprocessors, and bytes of shared memory that a block may have.

    lean: kernels run into each other there (dependent launch), and find a multiprocessor's memory divided as
    the one in front wanted it. Kernels that live off the cache and kernels of much shared memory then slow
    each other down, by 5 us a product on an H200: of few tokens a layer has the former only.
    cuda: kernels in CUDA C++ can be used there.
    """

    processors: int
    shared: int
    lean: bool = False
    cuda: bool = False


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
DIRECT_STARTS = (
    Plan(DIRECT, 8, 512, 4, 4), Plan(DIRECT, 16, 512, 4, 4), Plan(DIRECT, 8, 256, 2, 4),
    Plan(DIRECT, 32, 256, 2, 2, turns=2), Plan(DIRECT, 8, 512, 4, 2), Plan(DIRECT, 16, 256, 2, 2),
    Plan(DIRECT, 8, 128, 1, 2), Plan(DIRECT, 16, 256, 2, 4),
)  # fmt: skip
WIDE_STARTS = (
    *(Plan(kernel, 256, 64, 8, stages, gate=True) for kernel in (WAVES, EVEN) for stages in (4, 3)),
    *(Plan(PAIR, 256, 64, 8, stages, gate=True) for stages in (3, 2)),
    Plan(HALVES, 128, 64, 8, 6), Plan(HALVES, 128, 64, 8, 4),
)  # fmt: skip

NORMED = 3  # plans of each kernel that are tried with the norm inside as well


def starts(place: Place, card: Card, known: Sequence[Plan] = (), most: int | None = None) -> list[Plan]:
    """Plans `known` to be fast for the same matrix elsewhere, or for one like it, with and without the norm;
    then plans of every kind, far apart, each with the gate if the stage has one. most: so many at most, and
    none but known ones where some of those can serve. For many tokens there are few plans, and all are
    tried."""
    if place.tokens > MOST_TOKENS[TILE]:
        return _wide(place, card)
    both = [plan for each in known for plan in (each, replace(each, norm=not each.norm))]
    found = [plan for plan in both if fits(plan, place, card)]
    if most is None or not found:
        found += _usual(place, card)
    return list(dict.fromkeys(found))[:most]


def worth_measuring(place: Place, card: Card) -> bool:
    """Whether any kernel of ours may serve there."""
    return place.tokens <= MOST_TOKENS[TILE] or bool(starts(place, card))


def _wide(place: Place, card: Card) -> list[Plan]:
    """With SwiGLU inside where there is one behind the product; each with as many turns as one round of
    programs on the card takes, where it can have several."""
    gate = place.stage == NORM_GATED
    tiles = WIDE_STARTS[0].programs(place.tokens, place.n)
    turns = {WAVES: -(-tiles // card.processors)}
    plans = [replace(plan, turns=turns.get(plan.kernel, 1)) for plan in WIDE_STARTS]
    return [plan for plan in plans if plan.gate is gate and fits(plan, place, card)]


def _usual(place: Place, card: Card) -> list[Plan]:
    """The kernels in turns, what won most often first."""
    kinds = (_kind(plans, place, card) for plans in (DIRECT_STARTS, ROWS_STARTS, TILE_STARTS))
    return [plan for turn in zip_longest(*kinds, fillvalue=()) for plans in turn for plan in plans]


def _kind(plans: Sequence[Plan], place: Place, card: Card) -> list[tuple[Plan, ...]]:
    """Those that fit, the first NORMED of them together with the same that have the norm inside."""
    gate, split = place.stage == NORM_GATED, place.stage != BEST
    plain = [replace(plan, gate=gate, split=plan.split if split else 1) for plan in plans]
    found = [plan for plan in dict.fromkeys(plain) if fits(plan, place, card)]
    first = [plan for plan in found if plan.split == 1 and fits(replace(plan, norm=True), place, card)]
    first = first[:NORMED]
    return [(plan, replace(plan, norm=True)) if plan in first else (plan,) for plan in found]


def neighbours(plan: Plan, place: Place, card: Card) -> list[Plan]:
    """Plans that differ from `plan` in one size, twice or half as large, or in one choice; none of a plan
    for many tokens."""
    if plan.kernel in WIDE:
        return []
    near = [
        replace(plan, **{name: value})
        for name in ("block_n", "block_k", "warps", "split")
        for value in (getattr(plan, name) // 2, getattr(plan, name) * 2)
        if value
    ]
    if plan.kernel != ROWS:
        near += [replace(plan, stages=stages) for stages in (plan.stages - 1, plan.stages + 1)]
    if plan.kernel == TILE:
        near.append(replace(plan, swap=not plan.swap))
    if plan.kernel == DIRECT:
        near += [replace(plan, turns=turns) for turns in (plan.turns - 1, plan.turns + 1, 2 * plan.turns)]
    near += [replace(plan, norm=not plan.norm), replace(plan, gate=not plan.gate)]
    return [other for other in dict.fromkeys(near) if other != plan and fits(other, place, card)]


def fits(plan: Plan, place: Place, card: Card) -> bool:
    """Whether a plan can compute the product, and is not absurd in registers, memory, padding, programs."""
    if place.problem(plan) or plan.warps not in (1, 2, 4, 8, 16):
        return False
    if plan.kernel in CUDA and not card.cuda:
        return False
    if _padded(plan, place.k) > MOST_PADDING * place.k:
        return False
    programs = plan.programs(place.tokens, place.n)
    if programs < card.processors // 4 or (plan.split > 1 and programs > 16 * card.processors):
        return False
    if plan.kernel == ROWS:
        return _rows_fit(plan, place)
    if plan.kernel == DIRECT:
        return _direct_fits(plan, place)
    if plan.kernel in WIDE:
        return place.tokens > MOST_TOKENS[TILE] and _shared_fits(plan, place, card)
    return _tile_fits(plan, place, card)


def _rows_fit(plan: Plan, place: Place) -> bool:
    each, steps = plan.weights_held(), _padded(plan, place.k) // (plan.block_k * plan.split)
    unrolled = place.tokens * steps
    if unrolled > MOST_UNROLLED or unrolled * each > MOST_PRODUCTS:
        return False
    return 4 <= each <= 64 and (place.tokens * each <= 64 or _folded(place, each) <= MOST_HELD)


def _direct_fits(plan: Plan, place: Place) -> bool:
    unrolled = plan.turns * _padded(plan, place.k) // plan.block_k
    return unrolled <= MOST_UNROLLED and _direct_held(plan, place) <= MOST_DIRECT


def _tile_fits(plan: Plan, place: Place, card: Card) -> bool:
    if card.lean and _is_lean(place):
        return False
    if not _shared_fits(plan, place, card):
        return False
    return 1 <= plan.block_n * plan.side(place.tokens) // (32 * plan.warps) <= 64


def _shared_fits(plan: Plan, place: Place, card: Card) -> bool:
    return plan.stages >= 2 and plan.shared_bytes(place.tokens, SIZES[place.dtype]) <= card.shared


def _is_lean(place: Place) -> bool:
    return place.tokens <= LEAN_TOKENS and place.stage != BEST and SIZES[place.dtype] == 2


def _direct_held(plan: Plan, place: Place) -> int:
    """Registers of a thread of the direct kernel: weights and x in flight, or all of x; sums."""
    side = plan.side(place.tokens)
    share = plan.block_k // (64 * plan.warps) * plan.ahead(place.k)  # of each row or token
    x = plan.inputs_held(place.tokens, place.k) or side * share
    return plan.block_n * share + x + plan.block_n * side // 8


def _padded(plan: Plan, k: int) -> int:
    step = plan.block_k * plan.split
    return -(-k // step) * step


def _folded(place: Place, each: int) -> int:
    """Registers of a thread whose neighbouring columns share a sum: sums, then weights in fp32 beside those
    that are on their way."""
    return place.tokens * each * SIZES[place.dtype] // 16 + 2 * each
