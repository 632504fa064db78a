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


@jit(do_not_specialize=["tokens", "positions_ptr", "slots_ptr"])
def _rope_store(
    q_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr, positions_ptr, slots_ptr, q_out_ptr, k_out_ptr,
    k_pool_ptr, v_pool_ptr,
    tokens, q_stride, k_stride, v_stride, table_stride, pool_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
    HEADS_P: tl.constexpr, KV_HEADS_P: tl.constexpr, HALF_P: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    half: tl.constexpr = D // 2
    token = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    real = token < tokens
    d = tl.arange(0, HALF_P)
    position = tl.load(positions_ptr + token, mask=real, other=0)
    slot = tl.load(slots_ptr + token, mask=real, other=0).to(tl.int64)
    turn = position[:, None] * table_stride + d[None, :]
    known = real[:, None] & (d < half)[None, :]
    cos = tl.load(cos_ptr + turn, mask=known, other=0.0)[:, None, :]
    sin = tl.load(sin_ptr + turn, mask=known, other=0.0)[:, None, :]

    head = tl.arange(0, HEADS_P)
    lane = head[None, :, None] * D + d[None, None, :]
    inside = real[:, None, None] & (head < HEADS)[None, :, None] & (d < half)[None, None, :]
    source = q_ptr + token[:, None, None] * q_stride + lane
    target = q_out_ptr + token[:, None, None] * (HEADS * D) + lane
    low = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(source + half, mask=inside, other=0.0).to(tl.float32)
    tl.store(target, (low * cos - high * sin).to(q_out_ptr.dtype.element_ty), mask=inside)
    tl.store(target + half, (high * cos + low * sin).to(q_out_ptr.dtype.element_ty), mask=inside)

    head = tl.arange(0, KV_HEADS_P)
    lane = head[None, :, None] * D + d[None, None, :]
    inside = real[:, None, None] & (head < KV_HEADS)[None, :, None] & (d < half)[None, None, :]
    pooled = slot[:, None, None] * pool_stride + lane
    source = k_ptr + token[:, None, None] * k_stride + lane
    target = k_out_ptr + token[:, None, None] * (KV_HEADS * D) + lane
    low = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(source + half, mask=inside, other=0.0).to(tl.float32)
    new_low = (low * cos - high * sin).to(k_out_ptr.dtype.element_ty)
    new_high = (high * cos + low * sin).to(k_out_ptr.dtype.element_ty)
    tl.store(target, new_low, mask=inside)
    tl.store(target + half, new_high, mask=inside)
    tl.store(k_pool_ptr + pooled, new_low, mask=inside)
    tl.store(k_pool_ptr + pooled + half, new_high, mask=inside)
    source = v_ptr + token[:, None, None] * v_stride + lane
    tl.store(v_pool_ptr + pooled, tl.load(source, mask=inside, other=0.0), mask=inside)
    tl.store(v_pool_ptr + pooled + half, tl.load(source + half, mask=inside, other=0.0), mask=inside)


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
