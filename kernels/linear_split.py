# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""The second half of a product whose K was split: the parts are added in their order, so that results repeat.

Knows no weight. Legend: T tokens, N outputs.
"""

from __future__ import annotations

import triton.language as tl

from kernels.launch import enter, jit
from kernels.linear_parts import leave


@jit(do_not_specialize=["tokens"])
def _sum_parts(
    part_ptr, bias_ptr, out_ptr, tokens,
    N: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    # Grid: (blocks of outputs, tokens). part_ptr: fp32 [SPLIT, T, N] in the order of the blocks' lines.
    enter(PDL)
    line = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    token = tl.program_id(1).to(tl.int64) + tl.arange(0, 1)
    at = token[:, None] * N + line[None, :]
    inside = (line < N)[None, :]
    y = tl.full((1, BLOCK_N), 0.0, tl.float32)
    for split in tl.static_range(SPLIT):
        y += tl.load(part_ptr + split * tokens * N + at, mask=inside, other=0.0)
    leave(
        y,
        token,
        token < tokens,
        line,
        (bias_ptr, out_ptr, part_ptr, part_ptr),
        0,
        tokens,
        N,
        1,
        GATE,
        BIAS,
        0,
    )
