# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""SwiGLU's element-wise half: silu(gate) * up from one fused projection. Shazeer 2020.

Knows nothing of the projections around it. Legend: T tokens, F intermediate size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import INTERPRETED, dependent, enter, jit, power_of_two, tile_rows, warps_for

_MANY_ROWS = 128  # that fill a GPU at twice the elements a thread


@jit(do_not_specialize=["rows"])
def _silu_mul(
    x_ptr, out_ptr, rows, stride,
    F: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (col < F)[None, :]
    source = row[:, None] * stride + col[None, :]
    gate = tl.load(x_ptr + source, mask=inside, other=0.0)
    up = tl.load(x_ptr + source + F, mask=inside, other=0.0)
    dtype = gate.dtype
    gate = gate.to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)  # rounded here too, as torch does
    out = (silu * up.to(tl.float32)).to(dtype)
    tl.store(out_ptr + row[:, None] * F + col[None, :], out, mask=inside)


def silu_mul(gate_up: Tensor, *, early: bool = False) -> Tensor:
    """[T, 2F] (gate, then up), last axis contiguous -> [T, F]. early: see kernels.launch.dependent."""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, size), dtype=gate_up.dtype, device=gate_up.device)
    if rows == 0:
        return out
    many = rows >= _MANY_ROWS
    block = power_of_two(size) if INTERPRETED else min(2048 if many else 1024, power_of_two(size))
    tile = tile_rows(rows, block)
    _silu_mul[(triton.cdiv(rows, tile), triton.cdiv(size, block))](
        gate_up,
        out,
        rows,
        gate_up.stride(0),
        F=size,
        ROWS=tile,
        BLOCK=block,
        num_warps=warps_for(tile * block // (2 if many else 1)),
        **dependent(early),
    )
    return out
