# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""Decode and verify: up to 16 new tokens a request, chain or tree, against a prefix cut into splits.

Chooses tile and splits from sizes known on the host; the work of each split follows the device lengths. The
kernel is `attention_tile`; here is the second stage, which merges the splits (Dao et al. 2023,
"Flash-Decoding").
Legend: B requests, W width, Hq query heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl
from torch import Tensor

from engine.batch import ForwardBatch, LayerKV
from kernels.attention_tile import Partial, Tile, launch
from kernels.launch import INTERPRETED, interpreted_keys, jit, power_of_two

MAX_ROWS = 64  # of a tile on a GPU: query tokens times heads of a group
MAX_SPLITS = 32
_LEAST_SPLIT = 128  # positions that make a split worth its merge


@jit(do_not_specialize=["splits"])
def _merge(part_ptr, stats_ptr, out_ptr, splits, D: tl.constexpr, D_P: tl.constexpr):
    """One program an output row: out [rows, D] = sum of part [rows, splits, D], each rescaled to the top."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, D_P)
    acc = tl.full((D_P,), 0.0, tl.float32)
    top = tl.load(stats_ptr + row * splits * 2)
    for split in range(1, splits):
        top = tl.maximum(top, tl.load(stats_ptr + (row * splits + split) * 2))
    total = tl.full((D_P,), 0.0, tl.float32)
    for split in range(0, splits):
        cell = row * splits + split
        weight = tl.exp2(tl.load(stats_ptr + cell * 2) - top)
        total += weight * tl.load(stats_ptr + cell * 2 + 1)
        acc += weight * tl.load(part_ptr + cell * D + d, mask=d < D, other=0.0)
    out = acc / tl.where(total > 0.0, total, 1.0)
    tl.store(out_ptr + row * D + d, out.to(out_ptr.dtype.element_ty), mask=d < D)


@dataclass(frozen=True)
class SplitPlan:
    """How many splits decode launches use. programs: enough to fill the device; fixed: a number set by the
    user, or 0 for automatic."""

    programs: int
    fixed: int = 0

    def splits(self, batch: ForwardBatch, group: int, kv_heads: int) -> int:
        """From host sizes alone; any answer is correct for any device lengths."""
        if self.fixed:
            return self.fixed
        tiles = -(-batch.max_query * group // MAX_ROWS) * batch.size * kv_heads
        useful = -(-batch.seq_lens.max_bound // _LEAST_SPLIT)
        return max(1, min(self.programs // tiles, useful, MAX_SPLITS))

    def cells(self, max_rows: int, max_width: int, heads: int) -> int:
        """Entries [T, Hq, splits] that any launch of these limits can need."""
        if self.fixed:
            return max_rows * max_width * heads * self.fixed
        return self.programs * MAX_ROWS  # splits exceed 1 only while all programs together stay below


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
    q: Tensor,
    kv: LayerKV,
    batch: ForwardBatch,
    scale: float,
    page_size: int,
    plan: SplitPlan,
    workspace: Workspace,
) -> Tensor:
    """q [B * W, Hq, D] -> [B * W, Hq, D]; the KV of the new tokens (and of the window) is in `kv`."""
    if batch.size == 0:
        return q
    kv_heads = kv.k.shape[1]
    tile = _tile(q, kv_heads, batch)
    splits = plan.splits(batch, q.shape[1] // kv_heads, kv_heads)
    if splits == 1:
        return launch(q, kv, batch, scale, page_size, tile)
    assert q.numel() * splits <= workspace.sums.numel(), "a pass wider than its role's max_width"
    partial = Partial(splits, workspace.sums, workspace.stats)
    return merge(partial, launch(q, kv, batch, scale, page_size, tile, partial))


def merge(partial: Partial, out: Tensor) -> Tensor:
    """Fill out [T, Hq, D] with the merged splits, and return it."""
    dim = out.shape[2]
    _merge[(out.shape[0] * out.shape[1],)](
        partial.sums, partial.stats, out, partial.splits, D=dim, D_P=power_of_two(dim), num_warps=1
    )
    return out


def _tile(q: Tensor, kv_heads: int, batch: ForwardBatch) -> Tile:
    if INTERPRETED:  # few and large: all heads in one tile
        fresh = batch.max_query if batch.window_slots is None else batch.window_slots.shape[1]
        rows = power_of_two(max(16, batch.max_query * q.shape[1]))
        reach = power_of_two(max(16, (batch.seq_lens.max_bound + fresh) * kv_heads))
        return Tile(rows, min(reach, interpreted_keys(rows, q.shape[2])), kv_heads)
    rows = power_of_two(max(16, batch.max_query * (q.shape[1] // kv_heads)))
    if q.element_size() == 4:  # fp32 products run on the plain units, out of registers
        return Tile(min(rows, 32), 32)
    return Tile(min(rows, MAX_ROWS), 64 if q.shape[2] <= 128 else 32)
