# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803, N806
"""Gated products of 65 to 256 tokens: large tiles, read and stored by descriptors (TMA), SwiGLU inside.

Launched plainly: no program waits for a kernel in front that has not ended. Knows no layer.
Legend: M tokens of a tile, N outputs, of which F = N / 2 are the gate's and F up's, K inputs, LINES of the
gate in a tile, which holds as many of up. W is read as [2, F, K]: past F there is nothing, not up.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.launch import jit
from kernels.linear_parts import gated


def descriptors(
    x: Tensor, weight: Tensor, out: Tensor, widths: Sequence[int], tokens: int, columns: int
) -> list[TensorDescriptor]:
    """x [T, K] in blocks of tokens and columns; then W and out, once for each of widths: lines of a block."""
    (rows, k), half = x.shape, out.shape[1]
    read = TensorDescriptor(x, [rows, k], [x.stride(0), 1], [tokens, columns])
    pair = [half * k, k, 1]
    weights = [TensorDescriptor(weight, [2, half, k], pair, [2, width, columns]) for width in widths]
    stored = [TensorDescriptor(out, [rows, half], [half, 1], [tokens, width]) for width in widths]
    return [read, *weights, *stored]


@jit
def _add(acc, x, w, UPCAST: tl.constexpr):
    """acc fp32 [M, 2 LINES], and x [M, BLOCK_K] times w [2, LINES, BLOCK_K]."""
    w = w.reshape(w.shape[0] * w.shape[1], w.shape[2])
    if UPCAST:
        x, w = x.to(tl.float32), w.to(tl.float32)
    return tl.dot(x, tl.trans(w), acc, input_precision="ieee")


@jit
def _swiglu(acc, bias_ptr, first, F: tl.constexpr, BIAS: tl.constexpr, dtype: tl.constexpr):
    """acc fp32 [M, 2 LINES], the gate's lines from `first` on and then up's -> [M, LINES] in dtype."""
    M: tl.constexpr = acc.shape[0]
    LINES: tl.constexpr = acc.shape[1] // 2
    if BIAS:
        column = tl.arange(0, 2 * LINES)
        line = first + column % LINES
        bias = tl.load(bias_ptr + column // LINES * F + line, mask=line < F, other=0.0)
        acc += bias.to(tl.float32)[None, :]
    return gated(tl.permute(tl.reshape(acc, (M, 2, LINES)), (0, 2, 1)), dtype)


@jit(do_not_specialize=["blocks"])
def _linear_waves(
    x, w, out, bias_ptr, blocks,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, LINES: tl.constexpr, BLOCK_K: tl.constexpr,
    BIAS: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    # Grid: (programs,), which take tiles in turn, all steps in one loop: the next tile's first operands are
    # on their way while one is stored. blocks: of tokens; the tiles of the same lines follow one another.
    STEPS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    F: tl.constexpr = N // 2
    dtype: tl.constexpr = x.dtype
    program, programs = tl.program_id(0), tl.num_programs(0)
    tiles = (F + LINES - 1) // LINES * blocks
    count = (tiles - 1 - program) // programs + 1
    acc = tl.zeros((M, 2 * LINES), tl.float32)
    for turn in tl.range(0, count * STEPS):
        step = turn % STEPS
        tile = turn // STEPS * programs + program
        token, line = tile % blocks * M, tile // blocks * LINES
        weights = w.load([0, line, step * BLOCK_K])
        acc = _add(acc, x.load([token, step * BLOCK_K]), weights, UPCAST)
        if step == STEPS - 1:
            out.store([token, line], _swiglu(acc, bias_ptr, line, F, BIAS, dtype))
            acc = tl.zeros((M, 2 * LINES), tl.float32)


@jit(do_not_specialize=["blocks"])
def _linear_even(
    x, w, w_half, w_quarter, out, out_half, out_quarter, bias_ptr, blocks,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, LINES: tl.constexpr, BLOCK_K: tl.constexpr,
    BIAS: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    # Grid: (shares of lines x blocks of tokens,). A share is a tile, then half and a quarter of one side by
    # side: sizes between the powers of two, so that a card's processors get as much each.
    STEPS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    HALF: tl.constexpr = LINES // 2
    QUARTER: tl.constexpr = LINES // 4
    F: tl.constexpr = N // 2
    dtype: tl.constexpr = x.dtype
    token = tl.program_id(0) % blocks * M
    first = tl.program_id(0) // blocks * (LINES + HALF + QUARTER)
    acc = tl.zeros((M, 2 * LINES), tl.float32)
    for step in tl.range(0, STEPS):
        weights = w.load([0, first, step * BLOCK_K])
        acc = _add(acc, x.load([token, step * BLOCK_K]), weights, UPCAST)
    out.store([token, first], _swiglu(acc, bias_ptr, first, F, BIAS, dtype))

    second, third = first + LINES, first + LINES + HALF
    half = tl.zeros((M, 2 * HALF), tl.float32)
    quarter = tl.zeros((M, 2 * QUARTER), tl.float32)
    for step in tl.range(0, STEPS):
        inputs = x.load([token, step * BLOCK_K])
        half_weights = w_half.load([0, second, step * BLOCK_K])
        quarter_weights = w_quarter.load([0, third, step * BLOCK_K])
        half = _add(half, inputs, half_weights, UPCAST)
        quarter = _add(quarter, inputs, quarter_weights, UPCAST)
    out_half.store([token, second], _swiglu(half, bias_ptr, second, F, BIAS, dtype))
    out_quarter.store([token, third], _swiglu(quarter, bias_ptr, third, F, BIAS, dtype))
