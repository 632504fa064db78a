# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""Rotary embedding of queries and keys fused with the store of keys and values into the paged pool.

Su et al. 2021, sec. 3.4, in the half-split layout. Knows slots, not pages. Legend: T tokens, D head size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import dependent, enter, jit, power_of_two, tile_rows, warps_for


@jit
def _turned(low, high, cos, sin):
    """Both halves of heads, turned in fp32 and rounded."""
    dtype = low.dtype
    low, high = low.to(tl.float32), high.to(tl.float32)
    return (low * cos - high * sin).to(dtype), (high * cos + low * sin).to(dtype)


@jit(do_not_specialize=["tokens", "positions_ptr", "slots_ptr"])
def _rope_store(
    q_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr, positions_ptr, slots_ptr, q_out_ptr, k_out_ptr,
    k_pool_ptr, v_pool_ptr,
    tokens, q_stride, k_stride, v_stride, table_stride, pool_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
    HEADS_P: tl.constexpr, KV_HEADS_P: tl.constexpr, HALF_P: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    half: tl.constexpr = D // 2
    token = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    real = token < tokens
    d = tl.arange(0, HALF_P)
    # What describes the batch was written two kernels in front or earlier: see kernels.launch.enter.
    position = tl.load(positions_ptr + token, mask=real, other=0, cache_modifier=".cg")
    slot = tl.load(slots_ptr + token, mask=real, other=0, cache_modifier=".cg").to(tl.int64)
    turn = position[:, None] * table_stride + d[None, :]
    known = real[:, None] & (d < half)[None, :]
    cos = tl.load(cos_ptr + turn, mask=known, other=0.0)[:, None, :]
    sin = tl.load(sin_ptr + turn, mask=known, other=0.0)[:, None, :]
    enter(PDL)

    # All loads come first: their latencies overlap.
    own = real[:, None, None] & (d < half)[None, None, :]
    head = tl.arange(0, HEADS_P)[None, :, None]
    inside = own & (head < HEADS)
    lane = head * D + d[None, None, :]
    source = q_ptr + token[:, None, None] * q_stride + lane
    q_low = tl.load(source, mask=inside, other=0.0)
    q_high = tl.load(source + half, mask=inside, other=0.0)
    kv_head = tl.arange(0, KV_HEADS_P)[None, :, None]
    kv_inside = own & (kv_head < KV_HEADS)
    kv_lane = kv_head * D + d[None, None, :]
    source = k_ptr + token[:, None, None] * k_stride + kv_lane
    k_low = tl.load(source, mask=kv_inside, other=0.0)
    k_high = tl.load(source + half, mask=kv_inside, other=0.0)
    source = v_ptr + token[:, None, None] * v_stride + kv_lane
    v_low = tl.load(source, mask=kv_inside, other=0.0)
    v_high = tl.load(source + half, mask=kv_inside, other=0.0)

    pooled = slot[:, None, None] * pool_stride + kv_lane
    tl.store(v_pool_ptr + pooled, v_low, mask=kv_inside)
    tl.store(v_pool_ptr + pooled + half, v_high, mask=kv_inside)
    k_low, k_high = _turned(k_low, k_high, cos, sin)
    target = k_out_ptr + token[:, None, None] * (KV_HEADS * D) + kv_lane
    tl.store(target, k_low, mask=kv_inside)
    tl.store(target + half, k_high, mask=kv_inside)
    tl.store(k_pool_ptr + pooled, k_low, mask=kv_inside)
    tl.store(k_pool_ptr + pooled + half, k_high, mask=kv_inside)
    q_low, q_high = _turned(q_low, q_high, cos, sin)
    target = q_out_ptr + token[:, None, None] * (HEADS * D) + lane
    tl.store(target, q_low, mask=inside)
    tl.store(target + half, q_high, mask=inside)


def rope_store(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, slots: Tensor,
    k_pool: Tensor, v_pool: Tensor, *, early: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Rotate q [T, Hq, D] and k [T, Hkv, D], store k and v [T, Hkv, D] at slots [T] of the pools
    [slots, Hkv, D]; returns contiguous (q, k). cos, sin: fp32 [max positions, D], halves repeating.

    Heads must be D apart in every operand; tokens may be any stride apart. early: programs start while the
    kernel in front ends (kernels.launch.dependent).
    """
    tokens, heads, dim = q.shape
    kv_heads = k.shape[1]
    q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    if tokens == 0:
        return q_out, k_out
    q, k, v = (_heads_adjoin(x) for x in (q, k, v))
    width = power_of_two(heads) * power_of_two(dim // 2)
    tile = tile_rows(tokens, width)
    _rope_store[(triton.cdiv(tokens, tile),)](
        q, k, v, cos, sin, positions, slots, q_out, k_out, k_pool, v_pool,
        tokens, q.stride(0), k.stride(0), v.stride(0), cos.stride(0), k_pool.stride(0),
        HEADS=heads, KV_HEADS=kv_heads, D=dim, ROWS=tile, HEADS_P=power_of_two(heads),
        KV_HEADS_P=power_of_two(kv_heads), HALF_P=power_of_two(dim // 2), num_warps=warps_for(tile * width),
        **dependent(early),
    )  # fmt: skip
    return q_out, k_out


def _heads_adjoin(x: Tensor) -> Tensor:
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
