"""The search for fast kernels of more than 64 tokens: few plans, for gated products, and for others where
kernels in CUDA C++ can be used. Times are made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from benchmarks.kernel_candidates import Card, fits, neighbours, starts, worth_measuring
from benchmarks.kernel_search import Stopwatch, best_entry, winners
from engine.kernel_choices.plans import BEST, LINEAR, NORM_GATED, NORM_LINEAR, Place, Plan
from engine.kernel_choices.table import Entry

H200 = Card(132, 227 << 10)
CUDA_H200 = replace(H200, cuda=True)
GATED = Place(NORM_GATED, "bfloat16", 96, 28672, 4096)
OTHERS = [(NORM_LINEAR, 6144, 4096), (LINEAR, 4096, 14336), (LINEAR, 128256, 4096), (BEST, 32000, 4096)]


@pytest.mark.parametrize(("tokens", "turns"), [(96, 1), (128, 1), (192, 2), (256, 2)])
def test_of_many_tokens_few_plans_are_tried_all_of_them(tokens: int, turns: int) -> None:
    """Tiles in as many turns as one round of programs takes, even shares; whatever is known to be fast."""
    place = replace(GATED, tokens=tokens)
    tile = Plan("tile", 64, 128, 4, 4, gate=True)
    for card in (H200, replace(H200, lean=True)):
        found = starts(place, card)
        expected = [("waves", 4, turns), ("waves", 3, turns), ("even", 4, 1), ("even", 3, 1)]
        assert [(plan.kernel, plan.stages, plan.turns) for plan in found] == expected
        assert starts(place, card, [tile, found[2]], 1) == found
        for plan in found:
            assert not place.problem(plan)
            assert plan.shared_bytes(tokens, 2) <= card.shared
            assert neighbours(plan, place, card) == []
            assert plan.programs(tokens, place.n) <= card.processors
            assert not fits(plan, replace(place, tokens=64), card)  # that is for the other kernels
    assert worth_measuring(place, H200)


def test_more_tiles_than_a_card_has_processors_are_taken_in_turns() -> None:
    place = replace(GATED, tokens=128)
    turns = {card: starts(place, Card(card, 227 << 10))[0].turns for card in (132, 112, 111, 78, 56, 55)}
    assert turns == {132: 1, 112: 1, 111: 2, 78: 2, 56: 2, 55: 3}


@pytest.mark.parametrize("tokens", [96, 128, 192, 256])
def test_of_many_tokens_gated_products_alone_are_measured(tokens: int) -> None:
    """Without kernels in CUDA C++; and of gated ones none that fill a part of the card, or cannot be
    computed by our kernels there."""
    gated, ampere = replace(GATED, tokens=tokens), Card(108, 99 << 10)
    assert worth_measuring(gated, H200)
    assert worth_measuring(replace(gated, dtype="float16"), H200)
    assert not worth_measuring(replace(gated, dtype="float32"), H200)
    assert not worth_measuring(replace(gated, n=3072, k=576), H200)
    assert not worth_measuring(gated, ampere)
    for stage, n, k in OTHERS:
        assert worth_measuring(Place(stage, "bfloat16", 64, n, k), ampere)
        assert not worth_measuring(Place(stage, "bfloat16", tokens, n, k), H200)


def test_what_won_for_many_tokens_is_not_tried_for_few() -> None:
    place = replace(GATED, tokens=64)
    waves, tile = Plan("waves", 256, 64, 8, 4, gate=True), Plan("tile", 64, 128, 4, 4, swap=True, gate=True)
    won = {96: waves, 32: tile}
    found = {replace(place, tokens=tokens): Entry(plan, 1.0, 2.0) for tokens, plan in won.items()}
    assert set(winners(found, place)) == {tile, waves}
    assert starts(place, H200, winners(found, place), 8) == [tile, replace(tile, norm=True)]


@pytest.mark.parametrize("tokens", [96, 128, 192, 256])
def test_pairs_are_tried_where_they_can_be_used(tokens: int) -> None:
    """Of at least 129 tokens, and on a machine that has kernels in CUDA C++."""
    place = replace(GATED, tokens=tokens)
    pairs = [plan for plan in starts(place, CUDA_H200) if plan.kernel == "pair"]
    assert [plan.stages for plan in pairs] == ([3, 2] if tokens > 128 else [])
    assert [plan for plan in starts(place, CUDA_H200) if plan not in pairs] == starts(place, H200)
    for plan in pairs:
        assert not place.problem(plan)
        assert neighbours(plan, place, CUDA_H200) == []
        assert plan.programs(tokens, place.n) <= CUDA_H200.processors
        assert not fits(plan, place, H200)


@pytest.mark.parametrize("tokens", [64, 96, 128, 192, 256])
@pytest.mark.parametrize(("stage", "n", "k"), OTHERS)
def test_halves_are_tried_for_other_products_where_they_can_be_used(
    stage: str, n: int, k: int, tokens: int
) -> None:
    """Of at least 129 tokens; a head's best output has kernels of its own."""
    place, tile = Place(stage, "bfloat16", tokens, n, k), Plan("tile", 64, 128, 4, 4)
    served = tokens > 128 and stage != BEST
    found = starts(place, CUDA_H200, [tile])
    assert [plan.stages for plan in found if plan.kernel == "halves"] == ([6, 4] if served else [])
    assert worth_measuring(place, CUDA_H200) == (served or tokens == 64)
    if not served:
        assert found == starts(place, H200, [tile])
        return
    for plan in found:
        assert not place.problem(plan)
        assert plan == Plan("halves", 128, 64, 8, plan.stages)
        assert neighbours(plan, place, CUDA_H200) == []
        assert plan.shared_bytes(tokens, 2) <= CUDA_H200.shared
        assert not fits(plan, place, H200)
        assert not fits(plan, replace(place, dtype="float32"), CUDA_H200)
        assert not fits(plan, replace(place, tokens=64), CUDA_H200)


def test_halves_that_fill_a_part_of_the_card_are_not_tried() -> None:
    """Two for every 128 lines and 128 tokens: at least a quarter of the processors."""
    served = {
        n: worth_measuring(Place(LINEAR, "float16", 192, n, 4096), CUDA_H200) for n in (576, 1024, 1152)
    }
    assert served == {576: False, 1024: False, 1152: True}


def timed(seconds: Callable[[Plan | None], float]) -> Stopwatch:
    return Stopwatch(
        lambda plans: [seconds(plan) for plan in plans],
        lambda plans: [[seconds(plan)] * 3 for plan in plans],
    )


@pytest.mark.parametrize("finalists", [3, 1])
def test_a_pair_that_wins_has_the_next_best_beside_it(
    finalists: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where that is not among the fastest: other machines need it."""
    monkeypatch.setattr("benchmarks.kernel_search.FINALISTS", finalists)

    def seconds(plan: Plan | None) -> float:
        return (
            2.0 if plan is None else {"pair": 1.0, "even": 1.2, "waves": 1.3}[plan.kernel] + plan.stages / 99
        )

    pair, even = Plan("pair", 256, 64, 8, 2, gate=True), Plan("even", 256, 64, 8, 3, gate=True)
    entry = best_entry(replace(GATED, tokens=256), CUDA_H200, timed(seconds))
    assert entry == Entry(pair, seconds(pair), 2.0, Entry(even, seconds(even), 2.0))
    assert entry.without_cuda() == entry.instead


def test_a_pair_that_wins_alone_has_the_library_beside_it() -> None:
    def seconds(plan: Plan | None) -> float:
        return 1.1 if plan is None else 1.0 if plan.kernel == "pair" else 1.2

    entry = best_entry(replace(GATED, tokens=192), CUDA_H200, timed(seconds))
    assert entry == Entry(Plan("pair", 256, 64, 8, 3, gate=True), 1.0, 1.1)
    assert entry.without_cuda() == Entry(None, 1.1, 1.1)


@pytest.mark.parametrize(("library", "wins"), [(1.1, True), (1.005, False)])
def test_halves_that_win_have_the_library_beside_them(library: float, wins: bool) -> None:
    """No other kernel of ours serves there."""
    place, halves = Place(LINEAR, "bfloat16", 256, 4096, 14336), Plan("halves", 128, 64, 8, 4)

    def seconds(plan: Plan | None) -> float:
        return library if plan is None else 1.0 if plan.stages == 4 else 1.2

    entry = best_entry(place, CUDA_H200, timed(seconds))
    assert entry == (Entry(halves, 1.0, library) if wins else Entry(None, library, library))
    assert entry.without_cuda() == Entry(None, library, library)


def test_a_pair_that_does_not_win_is_not_kept() -> None:
    def seconds(plan: Plan | None) -> float:
        return 1.5 if plan is None else 1.2 if plan.kernel == "pair" else 1.1

    entry = best_entry(replace(GATED, tokens=256), CUDA_H200, timed(seconds))
    assert entry.plan is not None
    assert (entry.plan.kernel, entry.instead) == ("waves", None)
    assert entry.without_cuda() is entry


@pytest.mark.parametrize(("library", "chosen"), [(1.5, "even"), (1.005, None)])
def test_the_search_of_many_tokens_tries_four_plans(library: float, chosen: str | None) -> None:
    tried: list[Plan] = []

    def seconds(plan: Plan | None) -> float:
        return library if plan is None else 1.0 + 0.1 * (plan.kernel == "waves") + 0.1 * (plan.stages == 4)

    def quick(plans: Sequence[Plan]) -> list[float]:
        tried.extend(plans)
        return [seconds(plan) for plan in plans]

    watch = Stopwatch(quick, lambda plans: [[seconds(plan)] * 3 for plan in plans])
    entry = best_entry(replace(GATED, tokens=256), H200, watch)
    assert (entry.plan.kernel if entry.plan else None) == chosen
    assert len(tried) == 4
