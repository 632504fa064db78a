# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803, N806
"""Products of up to 64 tokens on matrix units: a program multiplies all tokens with a few rows of the weight.

Knows no layer. Legend: M tokens of the tile (at least 16), N outputs, K inputs; `given` and `sink` as in
linear_parts.
"""

from __future__ import annotations

import triton.language as tl

from kernels.launch import enter, jit
from kernels.linear_parts import below, inputs, leave, stream, weight_row, weights

AHEAD = tl.constexpr(4)  # steps of K that are fetched before the kernel in front has ended


@jit
def _scales(
    given, total_ptr, token, real, eps, stores,
    M: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """The norm's factors [M, 1]. stores: whether this program keeps the sums that are normalised."""
    squares = tl.full((M, BLOCK_K), 1.0 if NORM == 0 else 0.0, tl.float32)
    if NORM > 0:
        for start in range(0, K, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            inside = real[:, None] & below(k, K, K % BLOCK_K == 0)[None, :]
            x = stream(given, token[:, None], k[None, :], inside, NORM)
            squares += x * x
            if NORM == 2:
                at = token[:, None] * K + k[None, :]
                tl.store(total_ptr + at, x.to(total_ptr.dtype.element_ty), mask=inside & stores)
    return tl.rsqrt(tl.sum(squares, axis=1) / K + eps)[:, None]


@jit
def _fetch_ahead(w_ptr, row, first, K: tl.constexpr, SPAN: tl.constexpr):
    """Ask the L2 cache for the first SPAN columns of these rows; nothing is waited for."""
    LINE: tl.constexpr = 1024 // w_ptr.dtype.element_ty.primitive_bitwidth  # elements in 128 bytes
    column = tl.minimum(first + tl.arange(0, SPAN // LINE) * LINE, K - 1)
    address = (w_ptr + row[:, None] * K + column[None, :]).to(tl.int64)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1
    )


@jit
def _add(acc, x, w, SWAP: tl.constexpr, UPCAST: tl.constexpr):
    """acc + x w^T as [M, BLOCK_N], or transposed with SWAP."""
    if UPCAST:
        x, w = x.to(tl.float32), w.to(tl.float32)
    if SWAP:
        acc = tl.dot(w, tl.trans(x), acc, input_precision="ieee")
    else:
        acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    return acc


@jit(do_not_specialize=["tokens"])
def _linear_tile(
    x_ptr, residual_ptr, norm_ptr, w_ptr, bias_ptr, out_ptr, total_ptr, part_ptr, index_ptr,
    tokens, x_stride, residual_stride, eps,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr, NORM: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr, TOP: tl.constexpr,
    SWAP: tl.constexpr, PDL: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    # Grid: (blocks of outputs, splits of K).
    STEPS: tl.constexpr = (K + BLOCK_K * SPLIT - 1) // (BLOCK_K * SPLIT)
    EVEN: tl.constexpr = K % (BLOCK_K * SPLIT) == 0
    split = tl.program_id(1)
    line = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = weight_row(line, N, K, GATE)
    first = split * (STEPS * BLOCK_K)
    if PDL:
        _fetch_ahead(w_ptr, row, first, K, AHEAD * BLOCK_K)  # while the kernel in front ends
    enter(PDL)

    given = (x_ptr, residual_ptr, norm_ptr, x_stride, residual_stride)
    token = tl.arange(0, M).to(tl.int64)
    real = token < tokens
    stores = (tl.program_id(0) == 0) & (split == 0)
    scales = _scales(given, total_ptr, token, real, eps, stores, M, K, BLOCK_K, NORM)
    acc = tl.full((BLOCK_N, M) if SWAP else (M, BLOCK_N), 0.0, tl.float32)
    for step in range(0, STEPS):
        k = first + step * BLOCK_K + tl.arange(0, BLOCK_K)
        w = weights(w_ptr, row, k, K, EVEN)
        known = below(k, K, EVEN)[None, :]
        x = inputs(given, token[:, None], k[None, :], real[:, None] & known, known, scales, NORM)
        acc = _add(acc, x, w, SWAP, UPCAST)

    y = tl.trans(acc) if SWAP else acc
    sink = (bias_ptr, out_ptr, part_ptr, index_ptr)
    leave(y, token, real, line, sink, split, tokens, N, SPLIT, GATE, BIAS, TOP)
