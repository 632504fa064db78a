# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""The attention kernel: one tile of queries against a range of its request's paged keys.

Extend and split-KV decode are two launches of it; a tile's split that ends last merges all of them. It reads
page table and lengths on the device and knows no host length. The new tokens are read from the pool too: they
lie at positions seq_len onwards, in the order of the batch, unless the batch names the slots of its window
(tree drafting). Online softmax: Milakov & Gimelshein 2018. Splits of the keys: Dao et al. 2023,
"Flash-Decoding".
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.batch import ForwardBatch, LayerKV
from kernels.attention_block import ask, attend, lanes, pages, places, visible_keys, within
from kernels.attention_merge import Partial, leave_part, merge_parts, merge_sizes, split_keys
from kernels.attention_tiles import Tile
from kernels.launch import INTERPRETED, dependent, enter, jit, leave_cache, power_of_two

LOG2_E = 1.0 / math.log(2.0)


@jit
def _take_block(
    state, q, page, at, end, length, request, node, count, fresh_keys, token, own_head, block,
    k_ptr, v_ptr, tree_ptr, window_ptr, scale, strides,
    PACK: tl.constexpr, D: tl.constexpr, D_P: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr,
    TREE: tl.constexpr, WINDOW: tl.constexpr, UPCAST: tl.constexpr, CLEAR: tl.constexpr,
):  # fmt: skip
    # One block of keys from position `at` on. CLEAR: all of them lie in the pages and every row sees them.
    position, live = places(at, end, PACK, BLOCK_N)
    slot = page.to(tl.int64) * PAGE + position % PAGE
    if WINDOW and not CLEAR:
        beside = window_ptr + (request * fresh_keys + position - length)
        aside = live & (position >= length)
        slot = tl.where(aside, tl.load(beside, mask=aside, other=0), slot)
    lane = lanes(slot, block, strides, PACK, D_P, BLOCK_N)
    if CLEAR and BLOCK_N % PACK == 0 and D == D_P:
        keys = tl.load(k_ptr + lane)
        values = tl.load(v_ptr + lane)
    else:
        loaded = within(live, D, D_P)
        keys = tl.load(k_ptr + lane, mask=loaded, other=0.0)
        values = tl.load(v_ptr + lane, mask=loaded, other=0.0)
    visible = visible_keys(
        position, live, length, node, count, fresh_keys, token, own_head, tree_ptr,
        PACK, BLOCK_N, TREE, CLEAR, False,
    )  # fmt: skip
    return attend(state, q, keys, values, visible, scale, CLEAR and PACK == 1, UPCAST)


@jit(
    do_not_specialize=[
        "splits", "least", "window", "width", "start_ptr", "tree_ptr", "window_ptr", "table_row"
    ]
)  # fmt: skip
def _attention_tile(
    q_ptr, k_ptr, v_ptr, out_ptr, sums_ptr, stats_ptr, arrivals_ptr, table_ptr, rows_ptr, lens_ptr, start_ptr,
    tree_ptr, window_ptr, scale, splits, least, window, width, q_token, q_head, pool_slot, pool_head,
    table_row,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PACK: tl.constexpr, D: tl.constexpr, D_P: tl.constexpr,
    PAGE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EVEN: tl.constexpr,
    TREE: tl.constexpr, WINDOW: tl.constexpr, SPLIT: tl.constexpr, MERGED: tl.constexpr, TAKEN: tl.constexpr,
    HELD: tl.constexpr, LEAN: tl.constexpr, UPCAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Grid: (query tiles * blocks of PACK KV heads, requests, splits): the heads of a position lie side by
    # side and are read at the same time; programs without work come last. Tile rows: query tokens x heads of
    # a block; tile columns: positions x KV heads of a block. scale includes log2(e). EVEN: every request has
    # `width` tokens. MERGED, TAKEN: rows of a tile and splits that the merge reads at once. HELD: the first
    # block's keys of the prefix are read before the wait (not with WINDOW). LEAN: changes nothing here, but
    # makes a kernel of its own, which the driver treats as kernels.launch.leave_cache says.
    lines: tl.constexpr = GROUP * PACK  # of a token
    blocks: tl.constexpr = HEADS // lines
    step: tl.constexpr = BLOCK_N // PACK  # positions of a block
    request = tl.program_id(1)
    split = tl.program_id(2)
    block = tl.program_id(0) % blocks
    place = tl.program_id(0) // blocks
    # What describes the batch was written three kernels in front or earlier: see kernels.launch.enter.
    length = tl.load(lens_ptr + request, cache_modifier=".cg")  # these travel at once: no branch is between
    table = table_ptr + tl.load(rows_ptr + request, cache_modifier=".cg").to(tl.int64) * table_row
    first = request * width
    count = width
    if not EVEN:
        first = tl.load(start_ptr + request, cache_modifier=".cg")
        count = tl.load(start_ptr + request + 1, cache_modifier=".cg") - first
    tile = (tl.num_programs(0) // blocks - 1 - place) * BLOCK_M  # the longest first
    row = tile + tl.arange(0, BLOCK_M)
    node = row // lines
    head = block * lines + row % lines
    own_head = row % lines // GROUP
    token = (first + node).to(tl.int64)
    d = tl.arange(0, D_P)
    strides = (pool_slot, pool_head)

    fresh_keys = count  # keys behind the prefix; the pass's own tokens are the last of them
    if WINDOW:
        fresh_keys = window
    reach = length + fresh_keys  # keys that some row of the request may see
    chunk = reach
    if SPLIT:
        chunk = split_keys(reach, splits, least, step)
    begin = split * chunk
    end = tl.minimum(reach, begin + chunk)
    clear = length  # keys that every row of this tile sees
    if not TREE:
        clear = length + tile // lines + 1
        end = tl.minimum(end, length + (tile + BLOCK_M - 1) // lines + 1)
    paged = end  # keys from here on do not lie in the pages
    if WINDOW:
        paged = tl.minimum(end, length)
    page = pages(table, begin, paged, PACK, PAGE, BLOCK_N, True)
    at = begin
    if HELD:
        at = begin + step
        position, live = places(begin, end, PACK, BLOCK_N)
        lane = lanes(page.to(tl.int64) * PAGE + position % PAGE, block, strides, PACK, D_P, BLOCK_N)
        loaded = within(live & (position < length), D, D_P)
        keys = tl.load(k_ptr + lane, mask=loaded, other=0.0, cache_modifier=".cg")
        values = tl.load(v_ptr + lane, mask=loaded, other=0.0, cache_modifier=".cg")
        visible = visible_keys(
            position, live, length, node, count, fresh_keys, token, own_head, tree_ptr,
            PACK, BLOCK_N, TREE, False, True,
        )  # fmt: skip
        page = pages(table, at, paged, PACK, PAGE, BLOCK_N, True)
        if PDL and at < paged:  # the next block is not waited for yet: its lines may come nearer
            slot = page.to(tl.int64) * PAGE + (at + tl.arange(0, BLOCK_N) // PACK) % PAGE
            ask(k_ptr, slot, block, strides, PACK, D_P, BLOCK_N)
            ask(v_ptr, slot, block, strides, PACK, D_P, BLOCK_N)
    enter(PDL)

    if tile >= count * lines or begin >= reach:
        return
    q_mask = (node < count)[:, None] & (d < D)[None, :]
    q = tl.load(q_ptr + (token * q_token + head * q_head)[:, None] + d[None, :], mask=q_mask, other=0.0)
    if HELD:  # the kernel in front wrote the rest
        loaded = within(live & (position >= length), D, D_P)
        values = tl.load(v_ptr + lane, mask=loaded, other=values)
        keys = tl.load(k_ptr + lane, mask=loaded, other=keys)  # last: what follows it at once is a barrier
    if UPCAST:
        q = q.to(tl.float32)
    acc = tl.full((BLOCK_M, D_P), 0.0, tl.float32)
    top = tl.full((BLOCK_M,), -1e30, tl.float32)  # finite: where nothing is visible, inf - inf must not arise
    total = tl.full((BLOCK_M,), 0.0, tl.float32)
    if HELD:
        acc, top, total = attend((acc, top, total), q, keys, values, visible, scale, False, UPCAST)

    clear = at + tl.maximum(tl.minimum(clear, end) - at, 0) // step * step
    if EVEN and not WINDOW:  # few queries wait for memory: masks cost nothing, a loop more costs its latency
        clear = at
    else:
        for now in range(at, clear, step):
            # One block ahead: keys whose address comes from a load of the same turn could not be prefetched.
            later = pages(table, now + step, paged, PACK, PAGE, BLOCK_N, False)
            acc, top, total = _take_block(
                (acc, top, total), q, page, now, end, length, request, node, count, fresh_keys, token,
                own_head, block, k_ptr, v_ptr, tree_ptr, window_ptr, scale, strides,
                PACK, D, D_P, PAGE, BLOCK_N, TREE, WINDOW, UPCAST, True,
            )  # fmt: skip
            page = later
    for now in tl.range(clear, end, step, num_stages=1 if WINDOW else None):
        later = pages(table, now + step, paged, PACK, PAGE, BLOCK_N, False)
        acc, top, total = _take_block(
            (acc, top, total), q, page, now, end, length, request, node, count, fresh_keys, token,
            own_head, block, k_ptr, v_ptr, tree_ptr, window_ptr, scale, strides,
            PACK, D, D_P, PAGE, BLOCK_N, TREE, WINDOW, UPCAST, False,
        )  # fmt: skip
        page = later

    if SPLIT and chunk < reach:
        cell = (token * HEADS + head) * splits + split
        used = (reach + chunk - 1) // chunk
        arrival = arrivals_ptr + request * tl.num_programs(0) + tl.program_id(0)
        if leave_part(acc, top, total, cell, node < count, d, sums_ptr, stats_ptr, arrival, used, D):
            for part in range(0, tl.minimum(count * lines - tile, BLOCK_M), MERGED):
                merge_parts(
                    sums_ptr, stats_ptr, out_ptr, tile + part, first, count, block, splits, used,
                    HEADS, lines, D, D_P, MERGED, TAKEN,
                )  # fmt: skip
    else:
        out = acc / tl.where(total > 0.0, total, 1.0)[:, None]
        target = out_ptr + ((token * HEADS + head) * D)[:, None] + d[None, :]
        tl.store(target, out.to(out_ptr.dtype.element_ty), mask=q_mask)


def launch(
    q: Tensor, kv: LayerKV, batch: ForwardBatch, scale: float, page_size: int, tile: Tile,
    partial: Partial | None = None,
) -> Tensor:  # fmt: skip
    """q [T, Hq, D], last axis contiguous -> [T, Hq, D]. The KV of the new tokens must be in `kv`. `partial`:
    how requests are split, if they are, and where."""
    heads, kv_heads, dim = q.shape[1], kv.k.shape[1], q.shape[2]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tree, window = batch.tree_mask, batch.window_slots
    copied = tree is not None and not tree.is_contiguous()  # by a kernel right in front: too late to be held
    grid = grid_of(batch, heads, kv_heads, tile, partial)
    padded = power_of_two(max(dim, 16))
    used = batch.width * (heads // kv_heads) * tile.heads or tile.rows  # of prompts it would differ each time
    merged, taken = merge_sizes(used, padded, tile) if partial else (1, 1)
    room = (partial.room.sums, partial.room.stats, partial.room.arrivals) if partial else (out, out, out)
    compiled = _attention_tile[grid](
        q, kv.k, kv.v, out, *room,
        batch.page_table, batch.rows, batch.seq_lens.device, batch.query_start,
        batch.query_start if tree is None else tree.contiguous().view(torch.uint8),  # may come as a slice
        batch.query_start if window is None else window.contiguous(),
        scale * LOG2_E, partial.splits if partial else 1, partial.least if partial else 1,
        fresh_window(batch), batch.width, q.stride(0), q.stride(1),
        kv.k.stride(0), kv.k.stride(1), batch.page_table.stride(0),
        HEADS=heads, GROUP=heads // kv_heads, PACK=tile.heads, D=dim, D_P=padded, PAGE=page_size,
        BLOCK_M=tile.rows, BLOCK_N=tile.keys, EVEN=batch.width > 0, TREE=tree is not None,
        WINDOW=window is not None, SPLIT=partial is not None, MERGED=merged, TAKEN=taken,
        HELD=tile.held and window is None and not copied, LEAN=tile.lean,
        UPCAST=INTERPRETED,  # bf16 arithmetic is wrong there, without a word
        num_warps=tile.warps, num_stages=tile.stages, **tile.limits(), **dependent(tile.dependent),
    )  # fmt: skip
    if tile.lean:
        leave_cache(compiled)
    return out


def grid_of(
    batch: ForwardBatch, heads: int, kv_heads: int, tile: Tile, partial: Partial | None
) -> tuple[int, int, int]:
    """(query tiles * blocks of KV heads, requests, splits); the first two count the tiles that may be
    split."""
    tiles = triton.cdiv(batch.max_query * (heads // kv_heads) * tile.heads, tile.rows)
    return tiles * (kv_heads // tile.heads), batch.size, partial.splits if partial else 1


def fresh_window(batch: ForwardBatch) -> int:
    """Keys of the pass's window, 0 where the window is the pass's own tokens."""
    return 0 if batch.window_slots is None else batch.window_slots.shape[1]
