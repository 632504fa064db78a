"""Ragged prefill: each request's new tokens against its paged prefix and, causally, against each other.

Chooses the tile, and splits where a few tokens follow a long prefix: the kernel is `attention_tile`, the
merge that of decode. Legend: T new tokens, Hq query heads, D head size.
"""

from __future__ import annotations

from torch import Tensor

from engine.batch import ForwardBatch, LayerKV
from kernels.attention_decode import Workspace, merge
from kernels.attention_splits import SplitPlan
from kernels.attention_tile import Partial, launch
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
    if splits.count == 1 or q.numel() * splits.count > workspace.sums.numel():
        return launch(q, kv, batch, scale, page_size, tile)
    partial = Partial(splits.count, splits.least, workspace.sums, workspace.stats)
    return merge(partial, launch(q, kv, batch, scale, page_size, tile, partial), batch, tile)


def _tile(q: Tensor, kv_heads: int, batch: ForwardBatch, page_size: int, tiles: Tiles) -> Tile:
    rows = batch.max_query * (q.shape[1] // kv_heads)
    if not INTERPRETED:
        return tiles.extending(rows)
    heads = kv_heads if rows <= 128 else 1
    positions = batch.page_table.shape[1] * page_size
    return interpreted_tile(rows * heads, q.shape[2], positions, heads, _INTERPRETED_ROWS)
