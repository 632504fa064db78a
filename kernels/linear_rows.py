# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# mypy: disable-error-code=assignment
# ruff: noqa: N803, N806
"""Matrix-vector products of one to eight tokens: a program multiplies a few whole rows of the weight.

No matrix unit: at so few tokens the weight's bytes are all that counts. Knows no layer.
Legend: T tokens, N outputs, K inputs, F: columns whose products share a sum; `given` and `sink` as in
linear_parts.
"""

from __future__ import annotations

import triton.language as tl

from kernels.launch import enter, jit
from kernels.linear_parts import below, inputs, leave, stream, weight_row, weights


@jit
def _scales(
    given, total_ptr, eps, stores, T: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, NORM: tl.constexpr
):
    """The norm's factor of each token. stores: whether this program keeps the sums that are normalised."""
    scales = ()
    for t in tl.static_range(T):
        squares = tl.full((BLOCK_K,), 1.0 if NORM == 0 else 0.0, tl.float32)
        if NORM > 0:
            for start in tl.static_range(0, K, BLOCK_K):
                k = start + tl.arange(0, BLOCK_K)
                inside = below(k, K, K % BLOCK_K == 0)
                x = stream(given, t, k, inside, NORM)
                squares += x * x
                if NORM == 2:
                    tl.store(total_ptr + t * K + k, x.to(total_ptr.dtype.element_ty), mask=inside & stores)
        scales = scales + (tl.rsqrt(tl.sum(squares, axis=0) / K + eps),)  # noqa: RUF005
    return scales


@jit
def _add(sums, w, given, k, inside, scales, T: tl.constexpr, NORM: tl.constexpr, F: tl.constexpr):
    """sums fp32 [BLOCK_N, BLOCK_K / F] of each token, with the products of w [BLOCK_N, BLOCK_K] added."""
    added = ()
    for t in tl.static_range(T):
        x = inputs(given, t, k, inside, inside, scales[t], NORM).to(tl.float32)
        products = w * x[None, :]
        if F > 1:  # neighbours in one thread's registers: no exchange, and F times fewer sums
            products = tl.sum(tl.reshape(products, (w.shape[0], w.shape[1] // F, F)), axis=2)
        added = added + (sums[t] + products,)  # noqa: RUF005
    return added


@jit
def _linear_rows(
    x_ptr, residual_ptr, norm_ptr, w_ptr, bias_ptr, out_ptr, total_ptr, part_ptr, index_ptr,
    x_stride, residual_stride, eps,
    T: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr, NORM: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr, TOP: tl.constexpr,
    F: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Grid: (blocks of outputs, splits of K).
    STEPS: tl.constexpr = (K + BLOCK_K * SPLIT - 1) // (BLOCK_K * SPLIT)
    EVEN: tl.constexpr = K % (BLOCK_K * SPLIT) == 0
    split = tl.program_id(1)
    line = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = weight_row(line, N, K, GATE)
    k = split * (STEPS * BLOCK_K) + tl.arange(0, BLOCK_K)
    w = weights(w_ptr, row, k, K, EVEN).to(tl.float32)
    enter(PDL)  # the first weights are on their way while the kernel in front ends

    given = (x_ptr, residual_ptr, norm_ptr, x_stride, residual_stride)
    stores = (tl.program_id(0) == 0) & (split == 0)
    scales = _scales(given, total_ptr, eps, stores, T, K, BLOCK_K, NORM)
    sums = (tl.full((BLOCK_N, BLOCK_K // F), 0.0, tl.float32),) * T
    sums = _add(sums, w, given, k, below(k, K, EVEN), scales, T, NORM, F)
    for step in tl.static_range(1, STEPS):
        after = k + step * BLOCK_K
        w = weights(w_ptr, row, after, K, EVEN).to(tl.float32)
        sums = _add(sums, w, given, after, below(after, K, EVEN), scales, T, NORM, F)

    sink = (bias_ptr, out_ptr, part_ptr, index_ptr)
    for t in tl.static_range(T):
        token = tl.full((1,), t, tl.int64)
        y = tl.sum(sums[t], axis=1)[None, :]
        leave(y, token, token < T, line, sink, split, T, N, SPLIT, GATE, BIAS, TOP)
