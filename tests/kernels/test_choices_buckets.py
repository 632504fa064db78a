"""Which plan of a table a number of tokens takes: buckets, and what serves those between."""

from __future__ import annotations

from dataclasses import replace

from choices_tables import TABLE

from engine.kernel_choices.plans import Choices, Place, Plan, bucket_of


def test_tokens_between_the_buckets_take_the_next_one() -> None:
    asked = (1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33, 64)
    assert [bucket_of(tokens) for tokens in asked] == [1, 2, 3, 4, 5, 6, 8, 8, 16, 32, 64, 64]
    assert bucket_of(65) is None
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


def test_every_number_of_tokens_that_has_kernels_of_its_own_is_known() -> None:
    """The rows kernel is compiled for a number of tokens, the tile kernel serves all of its bucket."""
    rows, tile = Plan("rows", 4, 512), Plan("tile", 64, 64)
    plans = {1: rows, 5: rows, 6: tile, 8: rows, 16: tile, 64: None}
    choices = Choices({Place("linear", "bfloat16", t, 64, 64): plan for t, plan in plans.items()})
    expected = {1: rows, 2: rows, 3: rows, 4: rows, 5: rows, 6: tile, 7: rows, 8: rows, 16: tile}
    assert choices.compiled("linear", "bfloat16", 64, 64) == expected
