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
from kernels.linear_parts import below, inputs, leave, stream, unscaled, weight_row


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
def _keep_stream(given, total_ptr, T: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Store the sums that are normalised."""
    for t in tl.static_range(T):
        for start in tl.static_range(0, K, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            inside = below(k, K, K % BLOCK_K == 0)
            x = stream(given, t, k, inside, 2)
            tl.store(total_ptr + t * K + k, x.to(total_ptr.dtype.element_ty), mask=inside)


@jit
def _add(
    sums, squares, w, given, k, inside, scales,
    T: tl.constexpr, NORM: tl.constexpr, LATE: tl.constexpr, F: tl.constexpr,
):  # fmt: skip
    """sums fp32 [BLOCK_N, BLOCK_K / F] of each token, with the products of w [BLOCK_N, BLOCK_K] added, and
    squares fp32 [BLOCK_K] with those of what is normalised, if LATE."""
    added, known = (), ()
    for t in tl.static_range(T):
        if LATE:
            x, raw = unscaled(given, t, k, inside, NORM)
            known = known + (squares[t] + raw * raw,)  # noqa: RUF005
        else:
            x = inputs(given, t, k, inside, inside, scales[t], NORM)
            known = known + (squares[t],)  # noqa: RUF005
        products = w * x.to(tl.float32)[None, :]
        if F > 1:  # neighbours in one thread's registers: no exchange, and F times fewer sums
            products = tl.sum(tl.reshape(products, (w.shape[0], w.shape[1] // F, F)), axis=2)
        added = added + (sums[t] + products,)  # noqa: RUF005
    return added, known


@jit
def _weights(w_ptr, row, k, K: tl.constexpr, EVEN: tl.constexpr):
    at = w_ptr + row[:, None] * K + k[None, :]
    if EVEN:
        w = tl.load(at, eviction_policy="evict_first")
    else:
        w = tl.load(at, mask=(k < K)[None, :], other=0.0, eviction_policy="evict_first")
    return w.to(tl.float32)


@jit
def _linear_rows(
    x_ptr, residual_ptr, norm_ptr, w_ptr, bias_ptr, out_ptr, total_ptr, part_ptr, index_ptr,
    x_stride, residual_stride, eps,
    T: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr, NORM: tl.constexpr, LATE: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr,
    TOP: tl.constexpr, F: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Grid: (blocks of outputs, splits of K).
    STEPS: tl.constexpr = (K + BLOCK_K * SPLIT - 1) // (BLOCK_K * SPLIT)
    EVEN: tl.constexpr = K % (BLOCK_K * SPLIT) == 0
    split = tl.program_id(1)
    line = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = weight_row(line, N, K, GATE)
    k = split * (STEPS * BLOCK_K) + tl.arange(0, BLOCK_K)
    w = _weights(w_ptr, row, k, K, EVEN)
    enter(PDL)  # the first weights are on their way while the kernel in front ends

    given = (x_ptr, residual_ptr, norm_ptr, x_stride, residual_stride)
    stores = (tl.program_id(0) == 0) & (split == 0)
    scales = _scales(given, total_ptr, eps, stores, T, K, BLOCK_K, 0 if LATE else NORM)
    sums = (tl.full((BLOCK_N, BLOCK_K // F), 0.0, tl.float32),) * T
    squares = (tl.full((BLOCK_K,), 0.0, tl.float32),) * T
    for step in tl.static_range(STEPS):
        at = k + step * BLOCK_K
        if step > 0:
            w = _weights(w_ptr, row, at, K, EVEN)
        sums, squares = _add(sums, squares, w, given, at, below(at, K, EVEN), scales, T, NORM, LATE, F)

    sink = (bias_ptr, out_ptr, part_ptr, index_ptr)
    for t in tl.static_range(T):
        token = tl.full((1,), t, tl.int64)
        y = tl.sum(sums[t], axis=1)[None, :]
        if LATE:
            y *= tl.rsqrt(tl.sum(squares[t], axis=0) / K + eps)
        leave(y, token, token < T, line, sink, split, T, N, SPLIT, GATE, BIAS, TOP)
    if LATE and NORM == 2:  # noqa: SIM102
        if stores:  # last: no load would be asked for ahead of a store in front of it
            _keep_stream(given, total_ptr, T, K, BLOCK_K)
