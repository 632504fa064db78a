# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""The attention kernel: one tile of queries against a range of its request's paged keys.

Extend and split-KV decode are two launches of it. It reads page table and lengths on the device and knows
no host length. The new tokens are read from the pool too: they lie at positions seq_len onwards, in the order
of the batch, unless the batch names the slots of its window (tree drafting). Online softmax: Milakov &
Gimelshein 2018. Splits of the keys: Dao et al. 2023, "Flash-Decoding".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.batch import ForwardBatch, LayerKV
from kernels.attention_tiles import Tile
from kernels.launch import INTERPRETED, dependent, enter, jit, power_of_two

LOG2_E = 1.0 / math.log(2.0)


@jit
def split_keys(reach, splits, least, STEP: tl.constexpr):
    """Keys that each split of a request takes, in whole blocks of STEP: even work, `least` keys or more, at
    most `splits` of them. From the request's own length alone."""
    parts = tl.maximum(tl.minimum(reach // least, splits), 1)
    share = (reach + parts - 1) // parts
    return (share + STEP - 1) // STEP * STEP


@jit
def _pages(table, at, paged, PACK: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr):
    # Page ids of a block of positions, 0 from `paged` on.
    position = at + tl.arange(0, BLOCK_N) // PACK
    return tl.load(table + position // PAGE, mask=position < paged, other=0)


@jit
def _take_block(
    acc, top, total, q, page, at, end, length, request, node, count, fresh_keys, token, own_head, block,
    k_ptr, v_ptr, tree_ptr, window_ptr, scale, pool_slot, pool_head,
    PACK: tl.constexpr, D: tl.constexpr, D_P: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr,
    TREE: tl.constexpr, WINDOW: tl.constexpr, UPCAST: tl.constexpr, CLEAR: tl.constexpr,
):  # fmt: skip
    # One block of keys from position `at` on. CLEAR: all of them lie in the pages and every row sees them.
    d = tl.arange(0, D_P)
    column = tl.arange(0, BLOCK_N)
    column_head = column % PACK
    position = at + column // PACK
    live = position < end
    if BLOCK_N % PACK != 0:
        live = live & (column < BLOCK_N // PACK * PACK)
    slot = page.to(tl.int64) * PAGE + position % PAGE
    if WINDOW and not CLEAR:
        beside = window_ptr + (request * fresh_keys + position - length)
        aside = live & (position >= length)
        slot = tl.where(aside, tl.load(beside, mask=aside, other=0), slot)
    lane = (slot * pool_slot + (block * PACK + column_head) * pool_head)[:, None] + d[None, :]
    if CLEAR and BLOCK_N % PACK == 0 and D == D_P:
        keys = tl.load(k_ptr + lane)
        values = tl.load(v_ptr + lane)
    else:
        loaded = live[:, None]
        if D != D_P:
            loaded = loaded & (d < D)[None, :]
        keys = tl.load(k_ptr + lane, mask=loaded, other=0.0)
        values = tl.load(v_ptr + lane, mask=loaded, other=0.0)
    if UPCAST:
        keys = keys.to(tl.float32)
        values = values.to(tl.float32)

    scores = tl.dot(q, tl.trans(keys), input_precision="ieee")
    visible = live[None, :]
    if not CLEAR:
        fresh = (position - length)[None, :]  # index among the fresh keys; negative in the prefix
        if TREE:
            cell = (token * fresh_keys)[:, None] + fresh
            asked = (node < count)[:, None] & (fresh >= 0) & live[None, :]
            allowed = tl.load(tree_ptr + cell, mask=asked, other=0) != 0
            visible = visible & ((fresh < 0) | allowed | (fresh == (fresh_keys - count + node)[:, None]))
        else:
            visible = visible & (fresh <= node[:, None])
    if PACK > 1:
        visible = visible & (column_head[None, :] == own_head[:, None])
    if PACK > 1 or not CLEAR:
        scores = tl.where(visible, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, axis=1) * scale)
    weights = tl.exp2(scores * scale - new_top[:, None])
    shrink = tl.exp2(top - new_top)
    total = total * shrink + tl.sum(weights, axis=1)
    acc = acc * shrink[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    return acc, new_top, total


@jit(do_not_specialize=["splits", "least", "window", "start_ptr", "tree_ptr", "window_ptr", "table_row"])
def _attention_tile(
    q_ptr, k_ptr, v_ptr, out_ptr, sums_ptr, stats_ptr, table_ptr, rows_ptr, lens_ptr, start_ptr, tree_ptr,
    window_ptr, scale, splits, least, window, q_token, q_head, pool_slot, pool_head, table_row,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PACK: tl.constexpr, D: tl.constexpr, D_P: tl.constexpr,
    PAGE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    TREE: tl.constexpr, WINDOW: tl.constexpr, SPLIT: tl.constexpr, UPCAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Grid: (query tiles, requests, blocks of PACK KV heads * splits). Tile rows: query tokens x heads of a
    # block; tile columns: positions x KV heads of a block. scale includes log2(e).
    enter(PDL)
    request = tl.program_id(1)
    block = tl.program_id(2) // splits
    split = tl.program_id(2) % splits
    first = tl.load(start_ptr + request)  # all four travel at once: no branch stands between them
    count = tl.load(start_ptr + request + 1) - first
    length = tl.load(lens_ptr + request)
    table_at = tl.load(rows_ptr + request).to(tl.int64) * table_row
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M  # the longest first
    if tile >= count * (GROUP * PACK):
        return

    step: tl.constexpr = BLOCK_N // PACK  # positions of a block
    fresh_keys = count  # keys behind the prefix; the pass's own tokens are the last of them
    if WINDOW:
        fresh_keys = window
    reach = length + fresh_keys  # keys that some row of the request may see
    chunk = reach
    if SPLIT:
        chunk = split_keys(reach, splits, least, step)
    begin = split * chunk
    if begin >= reach:
        return

    row = tile + tl.arange(0, BLOCK_M)
    node = row // (GROUP * PACK)
    in_block = row % (GROUP * PACK)
    head = block * (GROUP * PACK) + in_block
    token = (first + node).to(tl.int64)
    d = tl.arange(0, D_P)
    q_mask = (node < count)[:, None] & (d < D)[None, :]
    q = tl.load(q_ptr + (token * q_token + head * q_head)[:, None] + d[None, :], mask=q_mask, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    acc = tl.full((BLOCK_M, D_P), 0.0, tl.float32)
    top = tl.full((BLOCK_M,), -1e30, tl.float32)  # finite: where nothing is visible, inf - inf must not arise
    total = tl.full((BLOCK_M,), 0.0, tl.float32)

    end = tl.minimum(reach, begin + chunk)
    clear = length  # keys that every row of this tile sees
    if not TREE:
        clear = length + tile // (GROUP * PACK) + 1
        end = tl.minimum(end, length + (tile + BLOCK_M - 1) // (GROUP * PACK) + 1)
    clear = begin + tl.maximum(tl.minimum(clear, end) - begin, 0) // step * step
    paged = end  # keys from here on do not lie in the pages
    if WINDOW:
        paged = tl.minimum(end, length)
    table = table_ptr + table_at
    page = _pages(table, begin, paged, PACK, PAGE, BLOCK_N)
    for at in range(begin, clear, step):
        # One block ahead: keys whose address comes from a load of the same turn could not be prefetched.
        later = _pages(table, at + step, paged, PACK, PAGE, BLOCK_N)
        acc, top, total = _take_block(
            acc, top, total, q, page, at, end, length, request, node, count, fresh_keys, token,
            in_block // GROUP, block, k_ptr, v_ptr, tree_ptr, window_ptr, scale, pool_slot, pool_head,
            PACK, D, D_P, PAGE, BLOCK_N, TREE, WINDOW, UPCAST, True,
        )  # fmt: skip
        page = later
    for at in tl.range(clear, end, step, num_stages=1):
        later = _pages(table, at + step, paged, PACK, PAGE, BLOCK_N)
        acc, top, total = _take_block(
            acc, top, total, q, page, at, end, length, request, node, count, fresh_keys, token,
            in_block // GROUP, block, k_ptr, v_ptr, tree_ptr, window_ptr, scale, pool_slot, pool_head,
            PACK, D, D_P, PAGE, BLOCK_N, TREE, WINDOW, UPCAST, False,
        )  # fmt: skip
        page = later

    if SPLIT and chunk < reach:
        cell = (token * HEADS + head) * splits + split
        tl.store(sums_ptr + (cell * D)[:, None] + d[None, :], acc, mask=q_mask)
        tl.store(stats_ptr + cell * 2, top, mask=node < count)
        tl.store(stats_ptr + cell * 2 + 1, total, mask=node < count)
    else:
        out = acc / tl.where(total > 0.0, total, 1.0)[:, None]
        target = out_ptr + ((token * HEADS + head) * D)[:, None] + d[None, :]
        tl.store(target, out.to(out_ptr.dtype.element_ty), mask=q_mask)


@dataclass(frozen=True)
class Partial:
    """Where splits leave unnormalised results, fp32: sums [T, Hq, splits, D], stats [T, Hq, splits, 2]
    (the largest score, and the weight below it). least: keys that make a split; a request whose keys fit
    into one split leaves nothing, its result is complete."""

    splits: int
    least: int
    sums: Tensor
    stats: Tensor


def launch(
    q: Tensor, kv: LayerKV, batch: ForwardBatch, scale: float, page_size: int, tile: Tile,
    partial: Partial | None = None,
) -> Tensor:  # fmt: skip
    """q [T, Hq, D], last axis contiguous -> [T, Hq, D]. The KV of the new tokens must be in `kv`. `partial`:
    what a split request leaves there is to be merged into the result."""
    heads, kv_heads, dim = q.shape[1], kv.k.shape[1], q.shape[2]
    group = heads // kv_heads
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    splits, least = (partial.splits, partial.least) if partial else (1, 1)
    tree, window = batch.tree_mask, batch.window_slots
    tiles = triton.cdiv(batch.max_query * group * tile.heads, tile.rows)
    _attention_tile[(tiles, batch.size, kv_heads // tile.heads * splits)](
        q, kv.k, kv.v, out, partial.sums if partial else out, partial.stats if partial else out,
        batch.page_table, batch.rows, batch.seq_lens.device, batch.query_start,
        batch.query_start if tree is None else tree.contiguous().view(torch.uint8),  # may come as a slice
        batch.query_start if window is None else window.contiguous(),
        scale * LOG2_E, splits, least, fresh_window(batch), q.stride(0), q.stride(1),
        kv.k.stride(0), kv.k.stride(1), batch.page_table.stride(0),
        HEADS=heads, GROUP=group, PACK=tile.heads, D=dim, D_P=power_of_two(max(dim, 16)), PAGE=page_size,
        BLOCK_M=tile.rows, BLOCK_N=tile.keys, TREE=tree is not None, WINDOW=window is not None,
        SPLIT=partial is not None, UPCAST=INTERPRETED,  # bf16 arithmetic is wrong there, without a word
        num_warps=tile.warps, num_stages=tile.stages, **dependent(tile.dependent),
    )  # fmt: skip
    return out


def fresh_window(batch: ForwardBatch) -> int:
    """Keys of the pass's window, 0 where the window is the pass's own tokens."""
    return 0 if batch.window_slots is None else batch.window_slots.shape[1]
