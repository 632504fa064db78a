# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803, N806
"""A block of paged keys: where it lies, what is read of it, and one turn of the online softmax over it.

Knows no grid and no splits. A block's columns are positions x KV heads, PACK of which lie side by side.
Milakov & Gimelshein 2018. Legend: M rows of queries, N columns, D head size.
"""

from __future__ import annotations

import triton.language as tl

from kernels.launch import jit


@jit
def pages(table, at, paged, PACK: tl.constexpr, PAGE: tl.constexpr, N: tl.constexpr, EARLY: tl.constexpr):
    """Page ids [N] of the block from position `at` on, 0 from `paged` on. EARLY: see kernels.launch.enter."""
    position = at + tl.arange(0, N) // PACK
    place = table + position // PAGE
    if EARLY:
        page = tl.load(place, mask=position < paged, other=0, cache_modifier=".cg")
    else:
        page = tl.load(place, mask=position < paged, other=0)
    return page


@jit
def places(at, end, PACK: tl.constexpr, N: tl.constexpr):
    """Positions [N] of a block's columns, and which of them are before `end`."""
    column = tl.arange(0, N)
    position = at + column // PACK
    live = position < end
    if N % PACK != 0:
        live = live & (column < N // PACK * PACK)
    return position, live


@jit
def lanes(slot, block, strides, PACK: tl.constexpr, D_P: tl.constexpr, N: tl.constexpr):
    """Offsets [N, D] into a pool. block: of PACK heads; strides: elements from slot to slot, head to head."""
    head = block * PACK + tl.arange(0, N) % PACK
    return (slot * strides[0] + head * strides[1])[:, None] + tl.arange(0, D_P)[None, :]


@jit
def within(live, D: tl.constexpr, D_P: tl.constexpr):
    """[N, D]: what of a block is read."""
    loaded = live[:, None]
    if D != D_P:
        loaded = loaded & (tl.arange(0, D_P) < D)[None, :]
    return loaded


@jit
def ask(pool, slot, block, strides, PACK: tl.constexpr, D_P: tl.constexpr, N: tl.constexpr):
    """Ask the L2 cache for the columns in these slots [N], any that exist; nothing is waited for."""
    LINE: tl.constexpr = 1024 // pool.dtype.element_ty.primitive_bitwidth  # elements in 128 bytes
    LINES: tl.constexpr = (D_P + LINE - 1) // LINE
    head = block * PACK + tl.arange(0, N) % PACK
    first = (slot * strides[0] + head * strides[1])[:, None]
    address = (pool + first + (tl.arange(0, LINES) * LINE)[None, :]).to(tl.int64)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1
    )


@jit
def visible_keys(
    position, live, length, node, count, fresh_keys, token, own_head, tree_ptr,
    PACK: tl.constexpr, N: tl.constexpr, TREE: tl.constexpr, CLEAR: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Which keys [M, N] each row sees. CLEAR: every row sees all positions, of its own head. EARLY: the tree
    is read past the first-level cache (kernels.launch.enter)."""
    visible = live[None, :]
    if not CLEAR:
        fresh = (position - length)[None, :]  # index among the fresh keys; negative in the prefix
        if TREE:
            cell = tree_ptr + (token * fresh_keys)[:, None] + fresh
            asked = (node < count)[:, None] & (fresh >= 0) & live[None, :]
            if EARLY:
                allowed = tl.load(cell, mask=asked, other=0, cache_modifier=".cg") != 0
            else:
                allowed = tl.load(cell, mask=asked, other=0) != 0
            visible = visible & ((fresh < 0) | allowed | (fresh == (fresh_keys - count + node)[:, None]))
        else:
            visible = visible & (fresh <= node[:, None])
    if PACK > 1:
        visible = visible & ((tl.arange(0, N) % PACK)[None, :] == own_head[:, None])
    return visible


@jit
def attend(state, q, keys, values, visible, scale, ALL: tl.constexpr, UPCAST: tl.constexpr):
    """(sums [M, D], largest score [M], weight [M]) after one more block. ALL: `visible` hides nothing."""
    acc, top, total = state
    if UPCAST:
        keys, values = keys.to(tl.float32), values.to(tl.float32)
    scores = tl.dot(q, tl.trans(keys), input_precision="ieee")
    if not ALL:
        scores = tl.where(visible, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, axis=1) * scale)
    weights = tl.exp2(scores * scale - new_top[:, None])
    shrink = tl.exp2(top - new_top)
    total = total * shrink + tl.sum(weights, axis=1)
    acc = acc * shrink[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    return acc, new_top, total
