"""The batch sizes of a warm-up against what decides how attention cuts a decode pass."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import product

import pytest

from engine.kernel_choices.plans import LEAN_TOKENS
from engine.two_batches.split import Cutter
from engine.warm_up import batch_sizes
from kernels.attention_queue import MOST_HEADS
from kernels.attention_splits import SplitPlan
from kernels.attention_tiles import HOPPER, Tile, tiles_for


@dataclass(frozen=True)
class Device:
    """What decides: tiles and splits of a GPU for such heads, and which numbers of tokens are lean."""

    heads: tuple[int, int]
    dim: int
    lean: Collection[int]
    processors: int = 132

    def kernel(self, batch: int, width: int, positions: int) -> tuple[Tile | None, bool]:
        """As kernels.attention_decode: a tile, split or not, is a kernel; without a tile, that of queues."""
        tiles = tiles_for(HOPPER, 2, self.dim)
        tiles = replace(tiles, queued=tiles.streamed is not None)
        plan = SplitPlan(4 * self.processors, 0, tiles.decode.rows)
        heads, kv_heads = self.heads
        room, rows = plan.room(batch, width, heads, kv_heads), width * heads // kv_heads
        mine = tiles.lean() if batch * width in self.lean else tiles
        alone = width == 1 and heads // kv_heads <= MOST_HEADS
        if mine.queued and alone and plan.queueing(batch, kv_heads):
            return None, False
        tile = mine.decoding(rows, crowded=plan.crowded(batch, kv_heads), room=room)
        parting = plan.parting(batch, kv_heads)
        streamed = mine.streaming(parting) if plan.streaming(batch, kv_heads) else None
        if streamed is not None and rows <= streamed.rows:
            return streamed, plan.streamed_splits(batch, kv_heads, positions).count > 1
        return tile, plan.splits(batch, width, heads, kv_heads, positions).count > 1


@pytest.mark.parametrize("heads", [(32, 8), (32, 32), (64, 8), (28, 4), (9, 3), (8, 1), (16, 8)], ids=str)
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("processors", [78, 114, 132])
def test_every_way_that_attention_cuts_a_batch_is_among_them(
    processors: int, dim: int, heads: tuple[int, int]
) -> None:
    """One that only sizes between have was compiled while serving."""
    device = Device(heads, dim, range(LEAN_TOKENS + 1), processors)
    for width, positions, most in product((1, 2, 3, 5, 16), (256, 400, 2048, 8192), (7, 48, 200, 256)):
        known = {device.kernel(batch, width, positions) for batch in batch_sizes(most)}
        assert known == {device.kernel(batch, width, positions) for batch in range(1, most + 1)}


@pytest.mark.parametrize("lean", [{5}, {1, 2, 5}, {1, 2, 3, 4}, {1, 2, 3, 4, 5}], ids=str)
@pytest.mark.parametrize("heads", [(32, 8), (32, 32), (9, 3), (16, 4)], ids=str)
@pytest.mark.parametrize("dim", [64, 128])
def test_halves_of_passes_meet_every_kernel(dim: int, heads: tuple[int, int], lean: set[int]) -> None:
    """Of a batch of 9 to 11 one half has five requests, as no batch of a power of two."""
    device = Device(heads, dim, lean)
    for width, positions, most in product((1, 2, 3, 5), (256, 8192), (7, 48, 200)):
        known = {device.kernel(-(-batch // 2), width, positions) for batch in batch_sizes(most, halved=True)}
        served = {
            device.kernel(half, width, positions)
            for batch in range(2, most + 1)
            for half in (batch // 2, -(-batch // 2))
        }
        assert served <= known, (width, positions, most)


@pytest.mark.parametrize("cutter", [Cutter(2, 32), Cutter(20, 2), Cutter(40, 64)], ids=str)
@pytest.mark.parametrize("heads", [(32, 8), (32, 32), (16, 4)], ids=str)
def test_passes_too_small_to_be_halved_meet_every_kernel(heads: tuple[int, int], cutter: Cutter) -> None:
    """Of 32 KV heads, 25 to 31 requests queue as one batch, halves of 48 do not."""
    device = Device(heads, 128, {1, 2, 3, 4, 5})
    for width, positions, most in product((1, 2, 5), (256, 8192), (7, 48, 200)):
        whole = cutter.whole(width)
        served, known = (
            {device.kernel(batch if batch <= whole else -(-batch // 2), width, positions) for batch in sizes}
            for sizes in (range(1, most + 1), batch_sizes(most, halved=True, whole=whole))
        )
        assert served == known, (width, positions, most)
