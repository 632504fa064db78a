# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""How the keys of a tile are split, what the splits leave for the one that ends last, and how it merges them.

Knows parts and counters, no keys. The parts are summed in the order of the splits, whoever comes last, so
that results repeat to the bit (Dao et al. 2023, "Flash-Decoding"; one launch instead of two).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl
from torch import Tensor

from kernels.arrivals import arrived_last
from kernels.attention_splits import Space
from kernels.attention_tiles import Tile
from kernels.launch import INTERPRETED, INTERPRETED_TILE, jit, power_of_two

_TAKEN = 16  # splits that a merge reads at once, at most
_VALUES = 64  # of theirs in each thread


@jit
def split_keys(reach, splits, least, STEP: tl.constexpr):
    """Keys that each split of a request takes, in whole blocks of STEP: even work, `least` keys or more, at
    most `splits` of them. From the request's own length alone."""
    parts = tl.maximum(tl.minimum(reach // least, splits), 1)
    share = (reach + parts - 1) // parts
    return (share + STEP - 1) // STEP * STEP


@jit
def leave_part(acc, top, total, cell, real, d, sums_ptr, stats_ptr, arrival, used, D: tl.constexpr):
    """Store a split's unnormalised result; true in the last of `used` programs that do so. Its counter is
    zero again then, for the next launch."""
    tl.store(sums_ptr + (cell * D)[:, None] + d[None, :], acc, mask=real[:, None] & (d < D)[None, :])
    tl.store(stats_ptr + cell * 2, top, mask=real)
    tl.store(stats_ptr + cell * 2 + 1, total, mask=real)
    return arrived_last(arrival, used)


@jit
def merge_parts(
    sums_ptr, stats_ptr, out_ptr, tile, first, count, block, splits, used,
    HEADS: tl.constexpr, LINES: tl.constexpr, D: tl.constexpr, D_P: tl.constexpr,
    ROWS: tl.constexpr, TAKEN: tl.constexpr,
):  # fmt: skip
    """Rows `tile` to tile + ROWS of a block of heads with LINES rows a token: each is the sum of its `used`
    parts [D], rescaled to the top. Past the first-level cache, where what others wrote does not appear."""
    row = tile + tl.arange(0, ROWS)
    node = row // LINES
    line = (first + node).to(tl.int64) * HEADS + block * LINES + row % LINES
    d = tl.arange(0, D_P)
    inside = (node < count)[:, None] & (d < D)[None, :]
    acc = tl.full((ROWS, D_P), 0.0, tl.float32)
    top = tl.full((ROWS,), -1e30, tl.float32)
    total = tl.full((ROWS,), 0.0, tl.float32)
    for at in range(0, used, TAKEN):
        split = at + tl.arange(0, TAKEN)
        cell = line[None, :] * splits + split[:, None]
        real = (split < used)[:, None] & (node < count)[None, :]
        height = tl.load(stats_ptr + cell * 2, mask=real, other=-1e30, cache_modifier=".cg")
        below = tl.load(stats_ptr + cell * 2 + 1, mask=real, other=0.0, cache_modifier=".cg")
        held = (split < used)[:, None, None] & inside[None, :, :]
        at_part = (cell * D)[:, :, None] + d[None, None, :]
        part = tl.load(sums_ptr + at_part, mask=held, other=0.0, cache_modifier=".cg")
        new_top = tl.maximum(top, tl.max(height, axis=0))
        weight = tl.exp2(height - new_top[None, :])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weight * below, axis=0)
        acc = acc * shrink[:, None] + tl.sum(weight[:, :, None] * part, axis=0)
        top = new_top
    out = acc / tl.where(total > 0.0, total, 1.0)[:, None]
    target = out_ptr + (line * D)[:, None] + d[None, :]
    tl.store(target, out.to(out_ptr.dtype.element_ty), mask=inside)


@dataclass(frozen=True)
class Workspace:
    """Preallocated room for split results, fp32: sums [cells * D], stats [cells * 2]; and how many splits of
    each tile have ended, int32: arrivals, zero between launches. Of launches one after another."""

    sums: Tensor
    stats: Tensor
    arrivals: Tensor

    @classmethod
    def allocate(cls, space: Space, device: torch.device) -> Workspace:
        """All of it zeros."""
        return cls(
            torch.zeros(space.sums, dtype=torch.float32, device=device),
            torch.zeros(space.stats, dtype=torch.float32, device=device),
            torch.zeros(space.arrivals, dtype=torch.int32, device=device),
        )

    def holds(self, values: int, grid: tuple[int, int, int]) -> bool:
        """Whether a launch with so many values of all splits together, and that grid, fits."""
        return values <= self.sums.numel() and grid[0] * grid[1] <= self.arrivals.numel()


@dataclass(frozen=True)
class Partial:
    """How a launch is split, and where splits leave unnormalised results: sums [T, Hq, splits, D], stats
    [T, Hq, splits, 2] (the largest score, and the weight below it). least: keys that make a split; a request
    whose keys fit into one leaves nothing, its result is complete."""

    splits: int
    least: int
    room: Workspace


def merge_sizes(rows: int, dim: int, tile: Tile) -> tuple[int, int]:
    """Rows of a tile that are merged at once where the pass uses `rows` of them or more, and splits that are
    read at once. dim: padded."""
    budget = INTERPRETED_TILE if INTERPRETED else _VALUES * 32 * tile.warps
    merged = min(tile.rows, power_of_two(rows), max(4, budget // dim))
    return merged, max(1, min(_TAKEN, budget // (merged * dim)))
