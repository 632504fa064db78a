"""Ragged prefill: each request's new tokens against its paged prefix and, causally, against each other.

Only chooses the tile: the kernel is `attention_tile`. Legend: T new tokens, Hq query heads, D head size.
"""

from __future__ import annotations

from torch import Tensor

from engine.batch import ForwardBatch, LayerKV
from kernels.attention_tile import Tile, launch
from kernels.launch import INTERPRETED, interpreted_keys, power_of_two


def attention_extend(q: Tensor, kv: LayerKV, batch: ForwardBatch, scale: float, page_size: int) -> Tensor:
    """q [T, Hq, D] -> [T, Hq, D]; the KV of the new tokens is in `kv` at batch.slots."""
    if batch.max_query == 0:
        return q
    return launch(q, kv, batch, scale, page_size, _tile(q, kv.k.shape[1], batch))


def _tile(q: Tensor, kv_heads: int, batch: ForwardBatch) -> Tile:
    rows = power_of_two(max(16, batch.max_query * (q.shape[1] // kv_heads)))
    if INTERPRETED:  # few and large
        heads = kv_heads if rows <= 128 else 1
        rows = power_of_two(max(16, batch.max_query * q.shape[1] // kv_heads * heads))
        reach = power_of_two(max(16, (batch.seq_lens.max_bound + batch.max_query) * heads))
        rows = min(rows, 512)
        return Tile(rows, min(reach, interpreted_keys(rows, q.shape[2])), heads)
    if q.element_size() == 4:  # fp32 products run on the plain units, out of registers
        return Tile(min(rows, 32), 32)
    return Tile(min(rows, 64), 64 if q.shape[2] <= 128 else 32)
