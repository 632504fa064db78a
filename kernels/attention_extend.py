"""Ragged prefill: each request's new tokens against its paged prefix and, causally, against each other.

Chooses the tile, and splits where a few tokens follow a long prefix: the kernel is `attention_tile`.
Legend: T new tokens, Hq query heads, D head size.
"""

from __future__ import annotations

from torch import Tensor

from engine.batch import ForwardBatch, LayerKV
from kernels.attention_merge import Partial, Workspace
from kernels.attention_splits import SplitPlan
from kernels.attention_tile import grid_of, launch
from kernels.attention_tiles import Tile, Tiles, interpreted_tile
from kernels.launch import INTERPRETED

_INTERPRETED_ROWS = 512


def attention_extend(
    q: Tensor, kv: LayerKV, batch: ForwardBatch, scale: float, page_size: int, tiles: Tiles,
    plan: SplitPlan, workspace: Workspace,
) -> Tensor:  # fmt: skip
    """q [T, Hq, D] -> [T, Hq, D]; the KV of the new tokens is in `kv` at batch.slots."""
    if batch.max_query == 0:
        return q
    heads, kv_heads, positions = q.shape[1], kv.k.shape[1], batch.page_table.shape[1] * page_size
    tile = _tile(q, kv_heads, batch, page_size, tiles)
    splits = plan.prompt_splits(batch.size, batch.max_query, heads, kv_heads, positions)
    partial = Partial(splits.count, splits.least, workspace)
    grid = grid_of(batch, heads, kv_heads, tile, partial)
    if splits.count == 1 or not workspace.holds(q.numel() * splits.count, grid):
        return launch(q, kv, batch, scale, page_size, tile)
    return launch(q, kv, batch, scale, page_size, tile, partial)


def _tile(q: Tensor, kv_heads: int, batch: ForwardBatch, page_size: int, tiles: Tiles) -> Tile:
    rows = batch.max_query * (q.shape[1] // kv_heads)
    if not INTERPRETED:
        return tiles.extending(rows)
    heads = kv_heads if rows <= 128 else 1
    positions = batch.page_table.shape[1] * page_size
    return interpreted_tile(rows * heads, q.shape[2], positions, heads, _INTERPRETED_ROWS)
