# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# mypy: disable-error-code="attr-defined, name-defined, assignment, call-arg, arg-type"
# ruff: noqa: N803, N806, RUF005
"""Decode of many requests at once on Hopper: pages go by bulk copies into shared memory, and from there
straight into the matrix units, so that no thread carries a key or a value.

A full device is bound by the bytes it reads, and by the power that this takes: every instruction beside it
counts. The units' rows are therefore 64 keys (of a product with values: 64 columns of them), their columns
the few query rows of a KV head. Reads page table and lengths on the device; knows no tree and no window.
Online softmax: Milakov & Gimelshein 2018. Copies and barriers: CUDA programming guide, "Tensor Memory
Accelerator". Legend: B requests, W width, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from engine.batch import ForwardBatch, LayerKV
from kernels.attention_merge import Partial
from kernels.attention_stream_merge import leave_strips, merged_strips
from kernels.attention_tile import LOG2_E
from kernels.attention_tiles import Tile
from kernels.launch import dependent, gluon_barrier, gluon_enter, gluon_jit, power_of_two

COLUMNS = 64  # of a head that one copy brings, and one product takes: 128 bytes
LEAST_PAGE = 8  # tokens: the rows that the layout of shared memory repeats after
DTYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


@gluon_jit
def _pages(table, block, reach, BLOCK: gl.constexpr, PAGE: gl.constexpr, PART: gl.constexpr):
    """Page ids of a block's parts, of PART keys each; -1 for parts that have none before `reach`."""
    ids = ()
    for part in gl.static_range(BLOCK // PART):
        position = block * BLOCK + part * PART
        place = table + position // PAGE
        ids = ids + (gl.load(place, mask=position < reach, other=-1, cache_modifier=".cg"),)
    return ids


@gluon_jit
def _fetch(
    pool, ring, full, stage, ids, block, slots, column, wanted,
    D: gl.constexpr, BLOCK: gl.constexpr, PAGE: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """Start the copies of a block's keys, or of its values, if `wanted`. Parts without a page are filled with
    zeros, as all is that lies behind a pool's last slot: nothing is read for them."""
    STRIPS: gl.constexpr = D // 64
    barrier = full.index(stage)
    mbarrier.expect(barrier, 2 * BLOCK * D, pred=wanted)  # bytes
    for part in gl.static_range(BLOCK // PART):
        slot = gl.where(ids[part] < 0, slots, ids[part] * PAGE + (block * BLOCK + part * PART) % PAGE)
        for strip in gl.static_range(STRIPS):
            target = ring.index(stage * STRIPS + strip).slice(part * PART, PART)
            tma.async_copy_global_to_shared(pool, [slot, column + strip * 64], barrier, target, pred=wanted)


@gluon_jit
def _silence(values, live, BLOCK: gl.constexpr, flat: gl.constexpr):
    """Zero the values [BLOCK, 64] of keys from `live` on: what a pool holds there may be no number."""
    key = gl.arange(0, BLOCK, layout=gl.SliceLayout(1, flat))[:, None]
    values.store(gl.where(key < live, values.load(flat), 0.0))


@gluon_jit(do_not_specialize=["splits", "least", "slots", "width", "table_row"])
def _attention_stream(
    q_ptr, k_pool, v_pool, out_ptr, sums_ptr, stats_ptr, arrivals_ptr, table_ptr, rows_ptr, lens_ptr, scale,
    splits, least, slots, width, q_token, q_head, table_row,
    HEADS: gl.constexpr, GROUP: gl.constexpr, D: gl.constexpr, PAGE: gl.constexpr, BLOCK: gl.constexpr,
    ROWS: gl.constexpr, STAGES: gl.constexpr, SPLIT: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    # Grid: (KV heads, requests, splits), as that of _attention_tile. ROWS: query tokens x heads of a KV head,
    # filled up. Shared memory holds STAGES blocks of keys and of values in strips of 64 columns. scale
    # includes log2(e).
    STRIPS: gl.constexpr = D // 64
    PART: gl.constexpr = min(PAGE, BLOCK)
    dtype: gl.constexpr = k_pool.dtype
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    flat: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    keys = gl.allocate_shared_memory(dtype, [STAGES * STRIPS, BLOCK, 64], k_pool.layout)
    values = gl.allocate_shared_memory(dtype, [STAGES * STRIPS, BLOCK, 64], k_pool.layout)
    q = gl.allocate_shared_memory(
        dtype, [STRIPS, ROWS, 64], gl.NVMMASharedLayout.get_default_for([ROWS, 64], dtype)
    )
    weights = gl.allocate_shared_memory(
        dtype, [ROWS, BLOCK], gl.NVMMASharedLayout.get_default_for([ROWS, BLOCK], dtype)
    )
    key_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    value_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(key_full.index(stage), count=1)
        mbarrier.init(value_full.index(stage), count=1)

    group = gl.program_id(0)
    request = gl.program_id(1)
    start = group * D  # the head's first column in a pool
    # What describes the batch was written three kernels in front or earlier: see kernels.launch.enter.
    length = gl.load(lens_ptr + request, cache_modifier=".cg")
    table = table_ptr + gl.load(rows_ptr + request, cache_modifier=".cg") * table_row
    reach = length + width
    begin = 0  # the split's blocks of keys: from `begin` on, before `blocks`
    used = 1
    blocks = (reach + BLOCK - 1) // BLOCK
    if SPLIT:  # as attention_merge.split_keys
        parts = gl.maximum(gl.minimum(reach // least, splits), 1)
        share = ((reach + parts - 1) // parts + BLOCK - 1) // BLOCK
        used = (blocks + share - 1) // share
        begin = gl.program_id(2) * share
        blocks = gl.minimum(blocks, begin + share)
    settled = gl.minimum(length // BLOCK, blocks)  # before it, keys of earlier passes alone
    for stage in gl.static_range(STAGES):
        ids = _pages(table, begin + stage, reach, BLOCK, PAGE, PART)
        wanted = begin + stage < settled
        _fetch(k_pool, keys, key_full, stage, ids, begin + stage, slots, start, wanted, D, BLOCK, PAGE, PART)
        _fetch(
            v_pool, values, value_full, stage, ids, begin + stage, slots, start, wanted, D, BLOCK, PAGE, PART
        )
    gluon_enter(PDL)

    if SPLIT and begin >= blocks:
        return
    for block in range(gl.maximum(settled, begin), gl.minimum(blocks, begin + STAGES)):
        at = block - begin
        ids = _pages(table, block, reach, BLOCK, PAGE, PART)
        _fetch(k_pool, keys, key_full, at, ids, block, slots, start, True, D, BLOCK, PAGE, PART)
        _fetch(v_pool, values, value_full, at, ids, block, slots, start, True, D, BLOCK, PAGE, PART)
    ids = _pages(table, begin + STAGES, reach, BLOCK, PAGE, PART)
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, flat))[:, None]
    column = gl.arange(0, 64, layout=gl.SliceLayout(0, flat))[None, :]
    source = q_ptr + (request * width + row // GROUP).to(gl.int64) * q_token
    source = source + (group * GROUP + row % GROUP) * q_head + column
    for strip in gl.static_range(STRIPS):
        asked = (row < width * GROUP) & (column < 64)
        q.index(strip).store(gl.load(source + strip * 64, mask=asked, other=0.0))
    fence_async_shared()
    gluon_barrier()

    place = gl.arange(0, ROWS, layout=gl.SliceLayout(0, sums))
    line = place[None, :]
    key = gl.arange(0, BLOCK, layout=gl.SliceLayout(1, sums))[:, None]
    last = length + line // GROUP  # the key that a row sees last
    acc = ()
    for _ in gl.static_range(STRIPS):
        acc = acc + (gl.zeros([64, ROWS], gl.float32, sums),)
    total = gl.zeros([BLOCK, ROWS], gl.float32, sums)
    top = gl.full([ROWS], -1e30, gl.float32, gl.SliceLayout(0, sums))  # finite: see _attention_tile
    for block in range(begin, blocks):
        at = (block - begin) % STAGES
        phase = ((block - begin) // STAGES) & 1
        wanted = block + STAGES < blocks
        mbarrier.wait(key_full.index(at), phase)
        scores = gl.zeros([BLOCK, ROWS], gl.float32, sums)
        for strip in gl.static_range(STRIPS):
            scores = warpgroup_mma(
                keys.index(at * STRIPS + strip), q.index(strip).permute([1, 0]), scores, is_async=True
            )
        scores = warpgroup_mma_wait(0, deps=[scores])
        gluon_barrier()  # all have read these keys: the block that is STAGES later may lie in their place
        _fetch(k_pool, keys, key_full, at, ids, block + STAGES, slots, start, wanted, D, BLOCK, PAGE, PART)
        scores = gl.where(block * BLOCK + key <= last, scores * scale, float("-inf"))
        new_top = gl.maximum(top, gl.max(scores, axis=0))
        weight = gl.exp2(scores - new_top[None, :])
        shrink = gl.exp2(top - new_top)[None, :]
        top = new_top
        total = total * shrink + weight
        weights.store(gl.permute(weight.to(dtype), [1, 0]))
        mbarrier.wait(value_full.index(at), phase)
        live = reach - block * BLOCK
        if live < BLOCK:
            for strip in gl.static_range(STRIPS):
                _silence(values.index(at * STRIPS + strip), live, BLOCK, flat)
        fence_async_shared()
        gluon_barrier()
        later = ()
        for strip in gl.static_range(STRIPS):
            turned = values.index(at * STRIPS + strip).permute([1, 0])
            later = later + (
                warpgroup_mma(turned, weights.permute([1, 0]), acc[strip] * shrink, is_async=True),
            )
        acc = ()
        for strip in gl.static_range(STRIPS):
            acc = acc + (warpgroup_mma_wait(0, deps=[later[strip]]),)
        gluon_barrier()
        _fetch(
            v_pool, values, value_full, at, ids, block + STAGES, slots, start, wanted, D, BLOCK, PAGE, PART
        )
        ids = _pages(table, block + STAGES + 1, reach, BLOCK, PAGE, PART)

    weight = gl.sum(total, axis=0)
    d = gl.arange(0, 64, layout=gl.SliceLayout(1, sums))[:, None]
    real = place < width * GROUP
    cell = (request * width + place // GROUP).to(gl.int64) * HEADS + group * GROUP + place % GROUP
    complete = True
    if SPLIT and used > 1:
        arrival = arrivals_ptr + request * gl.num_programs(0) + group
        own = cell * splits + gl.program_id(2)
        complete = leave_strips(acc, top, weight, own, real, d, sums_ptr, stats_ptr, arrival, used, D)
        if complete:
            acc, weight = merged_strips(acc, cell * splits, real, d, sums_ptr, stats_ptr, used, D, 4)
    if complete:
        target = out_ptr + cell[None, :] * D + d
        for strip in gl.static_range(STRIPS):
            out = (acc[strip] / weight[None, :]).to(dtype)
            gl.store(target + strip * 64, out, mask=real[None, :] & (d < 64))


def streams(q: Tensor, kv: LayerKV, batch: ForwardBatch, page_size: int, tile: Tile) -> bool:
    """Whether the kernel computes such a pass: 16-bit heads of whole strips, pages that shared memory can
    hold side by side, a chain of as many rows as the tile has."""
    heads, dim, kv_heads = q.shape[1], q.shape[2], kv.k.shape[1]
    pages = page_size >= LEAST_PAGE and page_size & (page_size - 1) == 0
    plain = batch.width > 0 and batch.tree_mask is None and batch.window_slots is None
    rows = batch.width * (heads // kv_heads)
    return plain and pages and rows <= tile.rows and dim in (COLUMNS, 2 * COLUMNS) and q.dtype in DTYPES


def attention_stream(
    q: Tensor, kv: LayerKV, batch: ForwardBatch, scale: float, page_size: int, tile: Tile,
    partial: Partial | None = None,
) -> Tensor:  # fmt: skip
    """q [B * W, Hq, D], last axis contiguous -> [B * W, Hq, D], of a pass that `streams`. The KV of the new
    tokens must be in `kv`. `partial`: how requests are split, if they are, and where."""
    assert (tile.warps, tile.keys % 64) == (4, 0), "layouts are those of one warp group and its 64 rows"
    heads, dim = q.shape[1], q.shape[2]
    slots, kv_heads = kv.k.shape[0], kv.k.shape[1]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    part = [min(page_size, tile.keys), COLUMNS]
    layout = gl.NVMMASharedLayout.get_default_for(part, DTYPES[q.dtype])
    shape, strides = [slots, kv_heads * dim], [kv.k.stride(0), 1]
    pools = [TensorDescriptor(side, shape, strides, part, layout) for side in (kv.k, kv.v)]
    room = (partial.room.sums, partial.room.stats, partial.room.arrivals) if partial else (out, out, out)
    splits, least = (partial.splits, partial.least) if partial else (1, 1)
    _attention_stream[kv_heads, batch.size, splits](
        q, *pools, out, *room, batch.page_table, batch.rows, batch.seq_lens.device, scale * LOG2_E,
        splits, least, slots, batch.width, q.stride(0), q.stride(1), batch.page_table.stride(0),
        HEADS=heads, GROUP=heads // kv_heads, D=dim, PAGE=page_size, BLOCK=tile.keys,
        ROWS=max(8, power_of_two(batch.width * (heads // kv_heads))), STAGES=tile.stages,
        SPLIT=partial is not None, num_warps=tile.warps, **tile.limits(), **dependent(tile.dependent),
    )  # fmt: skip
    return out
