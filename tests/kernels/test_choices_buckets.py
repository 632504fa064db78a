"""Which plan of a table a number of tokens takes: buckets, and what serves those between."""

from __future__ import annotations

from dataclasses import replace

from choices_tables import TABLE

from engine.kernel_choices.plans import NORM_GATED, Choices, Place, Plan, bucket_of


def test_tokens_between_the_buckets_take_the_next_one() -> None:
    asked = (1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33, 64, 65, 97, 129, 193, 256)
    sizes = [1, 2, 3, 4, 5, 6, 8, 8, 16, 32, 64, 64, 96, 128, 192, 256, 256]
    assert [bucket_of(tokens) for tokens in asked] == sizes
    assert bucket_of(257) is None
    choices = TABLE.choices()
    found = [choices.plan("norm_gated", "bfloat16", tokens, 28672, 4096) for tokens in (1, 4, 5, 8, 9)]
    assert [plan is not None for plan in found] == [False, True, True, True, False]
    assert choices.plan("norm_gated", "float32", 8, 28672, 4096) is None
    assert Choices({}).plan("linear", "bfloat16", 0, 1, 1) is None


def test_a_table_without_larger_buckets_in_between_serves_them_with_the_next_one() -> None:
    tile = Plan("tile", 64, 64)
    choices = Choices({Place("linear", "bfloat16", 64, 4096, 4096): tile})
    found = [choices.plan("linear", "bfloat16", tokens, 4096, 4096) for tokens in (8, 9, 16, 17, 64)]
    assert found == [None, tile, tile, tile, tile]


def test_a_table_without_the_finer_buckets_serves_them_with_the_next_one() -> None:
    """As tables that were written before there were buckets of 5 and 6."""
    eight, five = Plan("tile", 64, 64), Plan("rows", 4, 512)
    place = Place("linear", "bfloat16", 8, 4096, 4096)

    def found(choices: Choices) -> list[Plan | None]:
        return [choices.plan("linear", "bfloat16", tokens, 4096, 4096) for tokens in (1, 2, 4, 5, 6, 7, 8)]

    assert found(Choices({place: eight})) == [None, *[eight] * 6]
    assert found(Choices({place: None})) == [None] * 7
    measured = {place: eight, replace(place, tokens=5): five, replace(place, tokens=6): None}
    assert found(Choices(measured)) == [None, five, five, five, None, eight, eight]


def test_above_64_tokens_what_was_not_measured_is_the_library_s() -> None:
    """As in tables that were written before there were kernels for so many: no bucket stands for another."""
    tile = Plan("tile", 64, 64)
    waves, even = (Plan(kernel, 256, 64, 8, 4, gate=True) for kernel in ("waves", "even"))

    def found(plans: dict[int, Plan | None]) -> list[Plan | None]:
        choices = Choices({Place(NORM_GATED, "bfloat16", t, 28672, 4096): plan for t, plan in plans.items()})
        asked = (64, 65, 96, 97, 128, 129, 192, 193, 256, 257)
        return [choices.plan(NORM_GATED, "bfloat16", tokens, 28672, 4096) for tokens in asked]

    assert found({64: tile}) == [tile, *[None] * 9]
    measured = {64: tile, 96: waves, 192: None, 256: even}
    assert found(measured) == [tile, waves, waves, None, None, None, None, even, even, None]
    assert found({128: waves}) == [None, None, None, waves, waves, *[None] * 5]


def test_a_wide_kernel_is_compiled_once_a_bucket() -> None:
    """It has no size of its own for a number of tokens."""
    waves, even = (Plan(kernel, 256, 64, 8, 4, gate=True) for kernel in ("waves", "even"))
    plans = {64: Plan("tile", 64, 64, gate=True), 96: waves, 128: waves, 192: None, 256: even}
    choices = Choices({Place(NORM_GATED, "bfloat16", t, 28672, 4096): plan for t, plan in plans.items()})
    compiled = choices.compiled(NORM_GATED, "bfloat16", 28672, 4096)
    served = {16: plans[64], 32: plans[64]}
    assert compiled == {**served, 64: plans[64], 96: waves, 128: waves, 256: even}


def test_passes_of_few_tokens_are_lean_whatever_serves_many() -> None:
    waves = Plan("waves", 256, 64, 8, 4, gate=True)
    few = {Place(NORM_GATED, "bfloat16", t, 28672, 4096): Plan("direct", 8, 512, 4, 4) for t in (1, 5)}
    for more in ({}, {Place(NORM_GATED, "bfloat16", 128, 28672, 4096): waves}):
        lean = Choices({**few, **more}).lean("bfloat16", [(28672, 4096)])
        assert lean == frozenset({1, 2, 3, 4, 5})


def test_every_number_of_tokens_that_has_kernels_of_its_own_is_known() -> None:
    """The rows kernel is compiled for a number of tokens, the tile kernel serves all of its bucket."""
    rows, tile = Plan("rows", 4, 512), Plan("tile", 64, 64)
    plans = {1: rows, 5: rows, 6: tile, 8: rows, 16: tile, 64: None}
    choices = Choices({Place("linear", "bfloat16", t, 64, 64): plan for t, plan in plans.items()})
    expected = {1: rows, 2: rows, 3: rows, 4: rows, 5: rows, 6: tile, 7: rows, 8: rows, 16: tile}
    assert choices.compiled("linear", "bfloat16", 64, 64) == expected
