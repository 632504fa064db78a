"""The search for fast kernels: what it tries and what it chooses. Times are made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.kernel_candidates import Card, fits, neighbours, starts
from benchmarks.kernel_search import QUICK, Stopwatch, best_entry, winners
from engine.kernel_choices.plans import (
    BEST,
    BUCKETS,
    LEAN_TOKENS,
    LINEAR,
    NORM_GATED,
    NORM_LINEAR,
    Place,
    Plan,
)
from engine.kernel_choices.table import Entry

H200 = Card(132, 227 << 10)
FEW = [tokens for tokens in BUCKETS if tokens <= 64]  # at which all products are measured
SITES = [
    (NORM_LINEAR, 6144, 4096), (LINEAR, 4096, 4096), (NORM_GATED, 28672, 4096), (LINEAR, 4096, 14336),
    (LINEAR, 128256, 4096), (BEST, 32000, 4096), (NORM_LINEAR, 960, 576), (LINEAR, 576, 576),
    (NORM_GATED, 3072, 576), (LINEAR, 576, 1536), (LINEAR, 49152, 576),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("tokens", FEW)
def test_every_site_has_starts_and_all_of_them_fit(tokens: int, dtype: str) -> None:
    for stage, n, k in SITES:
        place = Place(stage, dtype, tokens, n, k)
        found = starts(place, H200)
        assert len(found) >= 2, place
        direct = {"direct"} if dtype == "bfloat16" and stage != BEST and tokens <= 16 else set()
        assert {plan.kernel for plan in found} == direct | ({"rows", "tile"} if tokens <= 8 else {"tile"}), (
            place
        )
        for plan in [*found, *(near for start in found for near in neighbours(start, place, H200))]:
            assert not place.problem(plan)
            assert plan.kernel != "tile" or _shared(plan, place) <= H200.shared


@pytest.mark.parametrize("tokens", FEW)
def test_kernels_that_run_into_each_other_do_not_divide_memory_differently(tokens: int) -> None:
    """Few tokens: on such a GPU nothing of a layer goes through shared memory, whatever won elsewhere."""
    lean, tile = replace(H200, lean=True), Plan("tile", 64, 128, 4, 4)
    for stage, n, k in SITES:
        place = Place(stage, "bfloat16", tokens, n, k)
        kernels = {plan.kernel for plan in starts(place, lean, [tile])}
        assert ("tile" in kernels) is (tokens > LEAN_TOKENS or stage == BEST), place
        assert fits(tile, replace(place, dtype="float32"), lean) is fits(
            tile, replace(place, dtype="float32"), H200
        )


def _shared(plan: Plan, place: Place) -> int:
    held = plan.stages * (plan.block_n + max(16, place.tokens)) * plan.block_k
    return held * (4 if place.dtype == "float32" else 2)


def test_neighbours_differ_in_one_thing() -> None:
    place = Place(NORM_GATED, "bfloat16", 8, 28672, 4096)
    plan = Plan("tile", 64, 128, 4, 3)
    for near in neighbours(plan, place, H200):
        assert sum(getattr(near, name) != getattr(plan, name) for name in vars(plan)) == 1
    fused = {(near.norm, near.gate) for near in neighbours(plan, place, H200)}
    assert fused == {(False, False), (True, False), (False, True)}


def test_neighbours_of_a_direct_plan_take_more_or_fewer_turns() -> None:
    place = Place(NORM_GATED, "bfloat16", 5, 28672, 4096)
    plan = Plan("direct", 32, 256, 2, 2, gate=True, turns=2)
    assert fits(plan, place, H200)
    found = neighbours(plan, place, H200)
    assert {near.turns for near in found} == {1, 2, 3, 4}
    assert all(sum(getattr(near, name) != getattr(plan, name) for name in vars(plan)) == 1 for near in found)
    assert not fits(replace(plan, stages=16), place, H200), "more weights on their way than registers"
    assert not fits(replace(plan, turns=16), place, H200), "steps that are all written out"


def test_a_matrix_is_first_tried_with_what_won_for_it_elsewhere() -> None:
    place = Place(LINEAR, "bfloat16", 6, 4096, 4096)
    far, near = Plan("tile", 32, 32), Plan("rows", 2, 2048, 8)
    found = {
        replace(place, tokens=64): Entry(far, 1.0, 2.0),
        replace(place, tokens=1): Entry(None, 1.0, 1.0),
        replace(place, tokens=5): Entry(near, 1.0, 2.0),
        replace(place, tokens=5, n=576): Entry(Plan("tile", 16, 16), 1.0, 2.0),
    }
    assert winners(found, place) == [near, far]
    assert starts(place, H200, winners(found, place))[:2] == [near, far]
    many = replace(place, tokens=32)
    assert starts(many, H200, [near, far])[0] == far  # what cannot serve is left out


def test_matrices_of_about_the_size_come_after_the_same_one() -> None:
    place = Place(LINEAR, "bfloat16", 8, 4096, 4096)
    plans = {n: Plan("tile", 64, k) for n, k in ((4096, 16), (6144, 32), (128256, 64), (2304, 128))}
    found = {replace(place, n=n): Entry(plan, 1.0, 2.0) for n, plan in plans.items()}
    found |= {replace(place, n=4097, stage=NORM_LINEAR): Entry(Plan("tile", 16, 16), 1.0, 2.0)}
    assert winners(found, place) == [plans[n] for n in (4096, 6144, 2304)]


def test_a_quick_search_stays_around_what_is_known() -> None:
    won = Plan("tile", 64, 128, 4, 4, swap=True, gate=True)
    assert starts(PLACE, H200, [won], 8) == [won, replace(won, norm=True)]
    usual = starts(PLACE, H200, [], 8)
    assert len(usual) == 8
    assert {plan.kernel for plan in usual} == {"direct", "rows", "tile"}
    assert {plan.norm for plan in usual} == {True, False}
    watch = MadeUp(replace(won, stages=3, norm=True), library=2.0)
    entry = best_entry(PLACE, H200, watch, [won], QUICK)
    assert entry.plan == replace(won, stages=3, norm=True)
    assert len(watch.tried) < 20


@pytest.mark.parametrize("tokens", [1, 5, 8, 32])
def test_norms_are_tried_inside_from_the_start(tokens: int) -> None:
    """Not only around a plan that won without."""
    for stage, n, k in SITES:
        place = Place(stage, "bfloat16", tokens, n, k)
        fused = [plan for plan in starts(place, H200) if plan.norm]
        kernels = {"rows", "tile"} if tokens <= 8 else {"tile"}
        assert {plan.kernel for plan in fused} == (set() if stage == LINEAR else kernels), place
        assert all(replace(plan, norm=False) in starts(place, H200) for plan in fused)
        assert all(plan.split == 1 for plan in fused)


def test_rows_of_five_tokens_have_several_candidates_of_few_registers() -> None:
    for stage, n, k in SITES[:5]:
        place = Place(stage, "bfloat16", 5, n, k)
        rows = [plan for plan in starts(place, H200) if plan.kernel == "rows"]
        assert len([plan for plan in rows if not plan.norm]) >= 3
        assert all(plan.gate == (stage == NORM_GATED) for plan in rows)


@pytest.mark.parametrize(
    "plan",
    [
        Plan("rows", 64, 4096, 4),
        Plan("tile", 128, 256, 4, 5),
        Plan("tile", 16, 16, 4, 1),
        Plan("rows", 4, 1024, 3),
    ],
)
def test_absurd_plans_are_not_tried(plan: Plan) -> None:
    assert not fits(plan, Place(LINEAR, "bfloat16", 4, 4096, 4096), H200)


class MadeUp(Stopwatch):
    """Seconds grow with the distance from one plan; the library takes as long as it is told."""

    def __init__(self, fastest: Plan, library: float) -> None:
        self.tried: list[Plan] = []
        super().__init__(self._quick, self._fair)
        object.__setattr__(self, "_fastest", fastest)
        object.__setattr__(self, "_library", library)

    def __hash__(self) -> int:
        return id(self)

    def _seconds(self, plan: Plan) -> float:
        if plan.stages == 5:
            return float("inf")
        goal: Plan = getattr(self, "_fastest")  # noqa: B009
        sizes = sum(
            abs(getattr(plan, n).bit_length() - getattr(goal, n).bit_length())
            for n in ("block_n", "block_k", "warps")
        )
        kinds = sum(
            getattr(plan, n) != getattr(goal, n)
            for n in ("kernel", "split", "swap", "norm", "gate", "stages")
        )
        return 1.0 + 0.1 * sizes + 0.1 * kinds

    def _quick(self, plans: Sequence[Plan]) -> list[float]:
        self.tried += plans
        return [self._seconds(plan) for plan in plans]

    def _fair(self, plans: Sequence[Plan | None]) -> list[list[float]]:
        assert plans[0] is None
        library: float = getattr(self, "_library")  # noqa: B009
        noise = (1.0, 3.0, 1.0)  # a round in which all are slow changes no ratio
        return [[(library if p is None else self._seconds(p)) * slow for slow in noise] for p in plans]


PLACE = Place(NORM_GATED, "bfloat16", 4, 28672, 4096)
GOAL = Plan("tile", 32, 64, 4, 4, norm=False, gate=True)


def test_the_search_walks_to_the_fastest_plan() -> None:
    watch = MadeUp(GOAL, library=1.5)
    entry = best_entry(PLACE, H200, watch)
    assert entry == Entry(GOAL, 1.0, 1.5)
    assert len(watch.tried) == len(set(watch.tried)) < 100


@pytest.mark.parametrize("library", [0.5, 1.005])
def test_the_library_is_kept_where_nothing_beats_it_clearly(library: float) -> None:
    assert best_entry(PLACE, H200, MadeUp(GOAL, library)) == Entry(None, library, library)


def test_where_no_plan_runs_the_library_is_kept() -> None:
    class Nothing(MadeUp):
        def _seconds(self, plan: Plan) -> float:
            return float("inf")

    assert best_entry(PLACE, H200, Nothing(GOAL, 2.0)) == Entry(None, 2.0, 2.0)
