# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""What the product kernels share: weights and norm on the way in, bias, SwiGLU and rounding on the way out.

Values are rounded exactly where separate kernels would store them. Knows no grid.
Legend: T tokens, N outputs, K inputs. `given`: (x, residual, norm weight, stride of x, stride of residual);
`sink`: (bias, out, parts, index). NORM: 0 none, 1 rms norm, 2 rms norm of x + residual.
"""

from __future__ import annotations

import triton.language as tl

from kernels.launch import jit

LOWEST = tl.constexpr(-3e38)  # of scores: what is no number comes last, yet before what is no score at all


@jit
def below(k, K: tl.constexpr, EVEN: tl.constexpr):
    """k < K; EVEN: known to hold, so that loads need no mask."""
    inside = k < K
    if EVEN:
        inside = tl.full(k.shape, 1, tl.int1)
    return inside


@jit
def stream(given, token, k, inside, NORM: tl.constexpr):
    """The residual stream in fp32 at token x k: x, or x + residual as it is stored. inside: of that shape."""
    x = tl.load(given[0] + token * given[3] + k, mask=inside, other=0.0).to(tl.float32)
    if NORM == 2:
        x += tl.load(given[1] + token * given[4] + k, mask=inside, other=0.0).to(tl.float32)
        x = x.to(given[0].dtype.element_ty).to(tl.float32)
    return x


@jit
def inputs(given, token, k, inside, known, scale, NORM: tl.constexpr):
    """What the weights are multiplied with, in the model's precision.

    inside: of token x k, known: of k. scale: the norm's factor.
    """
    dtype: tl.constexpr = given[0].dtype.element_ty
    x = stream(given, token, k, inside, NORM)
    if NORM > 0:
        weight = tl.load(given[2] + k, mask=known, other=0.0).to(tl.float32)
        x = (x * scale).to(dtype).to(tl.float32) * weight
    return x.to(dtype)


@jit
def weight_row(line, N: tl.constexpr, K: tl.constexpr, GATE: tl.constexpr):
    """The row of W behind each line of a block; lines past the last one repeat the first.

    GATE: lines 2i and 2i + 1 are row i of the gate and row i of up, which lies N / 2 further on.
    """
    row = tl.where(line < N, line, 0)
    if GATE:
        row = row // 2 + (row % 2) * (N // 2)
    if N * K > 2147483647:
        row = row.to(tl.int64)
    return row


@jit
def weights(w_ptr, row, k, K: tl.constexpr, EVEN: tl.constexpr):
    """W at row x k, which no other program reads; columns past the last are 0. EVEN: as `below` has it."""
    at = w_ptr + row[:, None] * K + k[None, :]
    if EVEN:
        w = tl.load(at, eviction_policy="evict_first")
    else:
        w = tl.load(at, mask=(k < K)[None, :], other=0.0, eviction_policy="evict_first")
    return w


@jit
def gated(pairs, dtype: tl.constexpr):
    """[M, n, 2] of gate and up in fp32 -> [M, n] in `dtype`: silu(gate) * up."""
    gate, up = tl.split(pairs.to(dtype).to(tl.float32))
    silu = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    return (silu * up).to(dtype)


@jit
def keep_best(y, token, real, line, sink, N: tl.constexpr, TOP: tl.constexpr):
    """The TOP largest of a block's scores y fp32 [M, BLOCK_N], of equals the first: parts fp32 [T, blocks,
    TOP + 1], the sum of exp(y - largest) at the end; index int32 [T, blocks, TOP]."""
    y = tl.where(y > LOWEST, y, LOWEST)
    y = tl.where((line < N)[None, :], y, float("-inf"))
    block = token * tl.num_programs(0) + tl.program_id(0)
    total = tl.sum(tl.exp(y - tl.max(y, axis=1)[:, None]), axis=1)
    tl.store(sink[2] + block * (TOP + 1) + TOP, total, mask=real)
    column = tl.arange(0, y.shape[1])[None, :]
    for i in tl.static_range(TOP):
        value, at = tl.max(y, axis=1, return_indices=True)
        tl.store(sink[2] + block * (TOP + 1) + i, value, mask=real)
        tl.store(sink[3] + block * TOP + i, tl.program_id(0) * y.shape[1] + at, mask=real)
        y = tl.where(column == at[:, None], float("-inf"), y)


@jit
def leave(
    y, token, real, line, sink, split, tokens,
    N: tl.constexpr, SPLIT: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr, TOP: tl.constexpr,
):  # fmt: skip
    """Store y fp32 [M, BLOCK_N] of token int64 [M] where `real`: as parts [SPLIT, T, N], as results in the
    model's precision, or the TOP best of the block."""
    dtype: tl.constexpr = sink[0].dtype.element_ty
    inside = real[:, None] & (line < N)[None, :]
    if SPLIT > 1:
        at = (split * tokens + token)[:, None] * N + line[None, :]
        tl.store(sink[2] + at, y, mask=inside)
    else:
        if BIAS:
            y += tl.load(sink[0] + weight_row(line, N, 1, GATE)).to(tl.float32)[None, :]
        if TOP > 0:
            keep_best(y, token, real, line, sink, N, TOP)
        elif GATE:
            out = gated(tl.reshape(y, (y.shape[0], y.shape[1] // 2, 2)), dtype)
            column = tl.program_id(0) * (y.shape[1] // 2) + tl.arange(0, y.shape[1] // 2)
            at = token[:, None] * (N // 2) + column[None, :]
            tl.store(sink[1] + at, out, mask=real[:, None] & (column < N // 2)[None, :])
        else:
            tl.store(sink[1] + token[:, None] * N + line[None, :], y.to(dtype), mask=inside)
