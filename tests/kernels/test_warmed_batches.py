"""The batch sizes of a warm-up against what decides how attention cuts a decode pass."""

from __future__ import annotations

from itertools import product

import pytest

from engine.kernel_choices.plans import LEAN_TOKENS
from engine.warm_up import batch_sizes
from kernels.attention_splits import SplitPlan
from kernels.attention_tiles import HOPPER, Tile, tiles_for


@pytest.mark.parametrize("heads", [(32, 8), (32, 32), (64, 8), (28, 4), (9, 3), (8, 1), (16, 8)], ids=str)
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("processors", [78, 114, 132])
def test_every_way_that_attention_cuts_a_batch_is_among_them(
    processors: int, dim: int, heads: tuple[int, int]
) -> None:
    """A tile, split or not, is a kernel: one that only sizes between have was compiled while serving."""
    tiles = tiles_for(HOPPER, 2, dim)
    plan = SplitPlan(4 * processors, 0, tiles.decode.rows)

    def kernel(batch: int, width: int, positions: int) -> tuple[Tile, bool]:
        room, rows = plan.room(batch, width, *heads), width * heads[0] // heads[1]
        mine = tiles.lean() if batch * width <= LEAN_TOKENS else tiles
        tile = mine.decoding(rows, crowded=plan.crowded(batch, heads[1]), room=room)
        streamed = mine.streamed if plan.streaming(batch, heads[1]) else None
        if streamed is not None and rows <= streamed.rows:
            return streamed, plan.streamed_splits(batch, rows, heads[1], positions).count > 1
        return tile, plan.splits(batch, width, *heads, positions).count > 1

    for width, positions, most in product((1, 2, 3, 5, 16), (256, 400, 2048, 8192), (7, 48, 200, 256)):
        known = {kernel(batch, width, positions) for batch in batch_sizes(most)}
        assert known == {kernel(batch, width, positions) for batch in range(1, most + 1)}, (width, positions)


@pytest.mark.parametrize("lean", [{5}, {1, 2, 5}, {1, 2, 3, 4}, {1, 2, 3, 4, 5}], ids=str)
@pytest.mark.parametrize("heads", [(32, 8), (32, 32), (9, 3)], ids=str)
def test_halves_of_passes_meet_every_lean_kernel(heads: tuple[int, int], lean: set[int]) -> None:
    """Of a batch of 9 to 11 one half has five requests, as no batch of a power of two."""
    tiles = tiles_for(HOPPER, 2, 64)
    plan = SplitPlan(4 * 132, 0, tiles.decode.rows)

    def kernel(batch: int, width: int) -> tuple[Tile, bool]:
        mine = tiles.lean() if batch * width in lean else tiles
        room = plan.room(batch, width, *heads)
        tile = mine.decoding(width * heads[0] // heads[1], crowded=plan.crowded(batch, heads[1]), room=room)
        return tile, plan.splits(batch, width, *heads, 256).count > 1

    for width, most in product((1, 2, 3, 5), (7, 48, 200)):
        known = {kernel(-(-batch // 2), width) for batch in batch_sizes(most, halved=True)}
        assert known == {kernel(-(-batch // 2), width) for batch in range(1, most + 1)}, (width, most)
