# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""Decode and verify: up to 16 new tokens a request, chain or tree, against a prefix cut into splits.

The grid follows from sizes that a captured graph knows: requests, width, heads, the row's whole context. How
many of its splits a request uses follows from its length, on the device. The kernel is `attention_tile`; here
is the second stage, which merges the splits (Dao et al. 2023, "Flash-Decoding").
Legend: B requests, W width, T = B * W, Hq query heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl
from torch import Tensor

from engine.batch import ForwardBatch, LayerKV
from kernels.attention_splits import MAX_SPLITS, SplitPlan
from kernels.attention_tile import Partial, fresh_window, launch, split_keys
from kernels.attention_tiles import Tile, Tiles, interpreted_tile
from kernels.launch import INTERPRETED, dependent, enter, jit, power_of_two

_FEW = 8  # splits that the merge of a large batch reads at once


@jit(do_not_specialize=["start_ptr", "splits", "least", "window"])
def _merge(
    part_ptr, stats_ptr, out_ptr, start_ptr, lens_ptr, splits, least, window,
    HEADS: tl.constexpr, D: tl.constexpr, D_P: tl.constexpr, S_P: tl.constexpr, STEP: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    # Grid: (output rows of the longest request, requests). An output row [D] is the sum of its splits' parts
    # [splits, D], each rescaled to the top.
    enter(PDL)
    first = tl.load(start_ptr + tl.program_id(1))
    count = tl.load(start_ptr + tl.program_id(1) + 1) - first
    reach = tl.load(lens_ptr + tl.program_id(1)) + tl.maximum(window, count)
    if tl.program_id(0) >= count * HEADS:
        return
    chunk = split_keys(reach, splits, least, STEP)
    if chunk >= reach:  # a single split wrote its result itself
        return
    row = first.to(tl.int64) * HEADS + tl.program_id(0)
    split = tl.arange(0, S_P)
    used = split * chunk < reach
    cell = row * splits + split
    d = tl.arange(0, D_P)
    inside = used[:, None] & (d < D)[None, :]
    top = tl.load(stats_ptr + cell * 2, mask=used, other=-1e30)
    below = tl.load(stats_ptr + cell * 2 + 1, mask=used, other=0.0)
    part = tl.load(part_ptr + (cell * D)[:, None] + d[None, :], mask=inside, other=0.0)
    weight = tl.where(used, tl.exp2(top - tl.max(top, axis=0)), 0.0)
    total = tl.sum(weight * below, axis=0)
    out = tl.sum(weight[:, None] * part, axis=0) / tl.where(total > 0.0, total, 1.0)
    tl.store(out_ptr + row * D + d, out.to(out_ptr.dtype.element_ty), mask=d < D)


@dataclass(frozen=True)
class Workspace:
    """Preallocated room for split results, fp32: sums [cells * D], stats [cells * 2]."""

    sums: Tensor
    stats: Tensor

    @classmethod
    def allocate(cls, cells: int, dim: int, device: torch.device) -> Workspace:
        return cls(
            torch.zeros(cells * dim, dtype=torch.float32, device=device),
            torch.zeros(cells * 2, dtype=torch.float32, device=device),
        )


def attention_decode(
    q: Tensor, kv: LayerKV, batch: ForwardBatch, scale: float, page_size: int, tiles: Tiles,
    plan: SplitPlan, workspace: Workspace,
) -> Tensor:  # fmt: skip
    """q [B * W, Hq, D] -> [B * W, Hq, D]; the KV of the new tokens (and of the window) is in `kv`."""
    if batch.size == 0:
        return q
    heads, kv_heads = q.shape[1], kv.k.shape[1]
    positions = batch.page_table.shape[1] * page_size
    tile = _tile(q, kv_heads, batch, positions, tiles)
    splits = plan.splits(batch.size, batch.max_query, heads, kv_heads, positions)
    if splits.count == 1:
        return launch(q, kv, batch, scale, page_size, tile)
    assert q.numel() * splits.count <= workspace.sums.numel(), "a pass wider than its role's max_width"
    partial = Partial(splits.count, splits.least, workspace.sums, workspace.stats)
    return merge(partial, launch(q, kv, batch, scale, page_size, tile, partial), batch, tile)


def merge(partial: Partial, out: Tensor, batch: ForwardBatch, tile: Tile) -> Tensor:
    """Fill out [T, Hq, D] with the merged splits where there are any, and return it. tile: of the launch that
    left them."""
    heads, dim = out.shape[1:]
    side = power_of_two(_FEW if partial.splits <= _FEW else max(MAX_SPLITS, partial.splits))
    _merge[(batch.max_query * heads, batch.size)](
        partial.sums, partial.stats, out, batch.query_start, batch.seq_lens.device,
        partial.splits, partial.least, fresh_window(batch),
        HEADS=heads, D=dim, D_P=power_of_two(dim), S_P=side, STEP=tile.keys // tile.heads,
        num_warps=1 if side == _FEW else 4, **dependent(tile.dependent),
    )  # fmt: skip
    return out


def _tile(q: Tensor, kv_heads: int, batch: ForwardBatch, positions: int, tiles: Tiles) -> Tile:
    if not INTERPRETED:
        return tiles.decode.at_most(batch.max_query * (q.shape[1] // kv_heads))
    rows = batch.max_query * q.shape[1]  # all heads in one tile
    return interpreted_tile(rows, q.shape[2], positions + fresh_window(batch), kv_heads)
