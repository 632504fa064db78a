"""Decode and verify: up to 16 new tokens a request, chain or tree, against a prefix cut into splits.

The grid follows from sizes that a captured graph knows: requests, width, heads, the row's whole context. How
many of its splits a request uses follows from its length, on the device. The kernel is `attention_tile`, or
`attention_stream` where the requests leave little of the device idle (SplitPlan.streaming), `attention_queue`
where they queue for it (SplitPlan.queueing).
Legend: B requests, W width, Hq query heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from engine.batch import ForwardBatch, LayerKV
from kernels.attention_merge import Partial, Workspace
from kernels.attention_queue import QUEUE, attention_queue, queues
from kernels.attention_splits import SplitPlan
from kernels.attention_stream import attention_stream, streams
from kernels.attention_tile import fresh_window, grid_of, launch
from kernels.attention_tiles import Tile, Tiles, interpreted_tile
from kernels.launch import INTERPRETED


def attention_decode(
    q: Tensor, kv: LayerKV, batch: ForwardBatch, scale: float, page_size: int, tiles: Tiles,
    plan: SplitPlan, workspace: Workspace,
) -> Tensor:  # fmt: skip
    """q [B * W, Hq, D] -> [B * W, Hq, D]; the KV of the new tokens (and of the window) is in `kv`."""
    if batch.size == 0:
        return q
    heads, kv_heads = q.shape[1], kv.k.shape[1]
    shape = batch.size, kv_heads
    if tiles.queued and plan.queueing(*shape) and queues(q, kv, batch, page_size):
        queue = workspace.arrivals[:QUEUE]  # zero between launches, whichever kernel's
        return attention_queue(
            q, kv, batch, scale, page_size, queue, plan.staying, early=tiles.decode.dependent
        )
    positions = batch.page_table.shape[1] * page_size
    tile = tiles.streaming(plan.parting(*shape)) if plan.streaming(*shape) else None
    if tile is not None and streams(q, kv, batch, page_size, tile):
        splits = plan.streamed_splits(*shape, positions)
        run: Callable[..., Tensor] = attention_stream
    else:
        tile = _tile(q, kv_heads, batch, positions, tiles, plan)
        splits = plan.splits(batch.size, batch.max_query, heads, kv_heads, positions)
        run = launch
    if splits.count == 1:
        return run(q, kv, batch, scale, page_size, tile)
    partial = Partial(splits.count, splits.least, workspace)
    fits = workspace.holds(q.numel() * splits.count, grid_of(batch, heads, kv_heads, tile, partial))
    assert fits, "a pass wider than its role's max_width"
    return run(q, kv, batch, scale, page_size, tile, partial)


def _tile(
    q: Tensor, kv_heads: int, batch: ForwardBatch, positions: int, tiles: Tiles, plan: SplitPlan
) -> Tile:
    if not INTERPRETED:
        rows = batch.max_query * (q.shape[1] // kv_heads)
        room = plan.room(batch.size, batch.max_query, q.shape[1], kv_heads)
        return tiles.decoding(rows, crowded=plan.crowded(batch.size, kv_heads), room=room)
    rows = batch.max_query * q.shape[1]  # all heads in one tile
    return interpreted_tile(rows, q.shape[2], positions + fresh_window(batch), kv_heads)
