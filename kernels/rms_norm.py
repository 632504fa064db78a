# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""Root mean square norm, with or without adding a residual first. Zhang & Sennrich 2019, eq. 4.

Knows nothing of layers: rows in, rows out. Legend: N rows, H normalised size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import dependent, enter, jit, power_of_two, tile_rows, warps_for


@jit(do_not_specialize=["rows"])
def _rms_norm(
    x_ptr, residual_ptr, weight_ptr, out_ptr, total_ptr,
    rows, inner, stride_outer, stride_inner, stride_residual, eps,
    H: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    col = tl.arange(0, BLOCK)
    weight = tl.load(weight_ptr + col, mask=col < H, other=0.0)  # on its way while the kernel in front ends
    enter(PDL)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    inside = (row < rows)[:, None] & (col < H)[None, :]
    source = (row // inner) * stride_outer + (row % inner) * stride_inner
    target = row[:, None] * H + col[None, :]
    x = tl.load(x_ptr + source[:, None] + col[None, :], mask=inside, other=0.0)
    dtype = x.dtype
    x = x.to(tl.float32)
    if ADD:
        beside = row[:, None] * stride_residual + col[None, :]
        x += tl.load(residual_ptr + beside, mask=inside, other=0.0).to(tl.float32)
        x = x.to(dtype)  # the sum is kept, and normalised, in the model's precision
        tl.store(total_ptr + target, x, mask=inside)
        x = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / H + eps)
    normed = (x * scale[:, None]).to(dtype).to(tl.float32)
    tl.store(out_ptr + target, (normed * weight.to(tl.float32)[None, :]).to(dtype), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, early: bool = False) -> Tensor:
    """x [T, H] or [T, heads, H], last axis contiguous -> contiguous tensor of that shape.

    Variance in fp32, cast to x.dtype, then the product with weight [H]. early: see kernels.launch.dependent.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    inner = x.shape[1] if x.dim() == 3 else 1
    stride_inner = x.stride(1) if x.dim() == 3 else 0
    _launch(x, x, weight, out, out, eps, x.shape[0] * inner, inner, stride_inner, False, early)
    return out


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, early: bool = False
) -> tuple[Tensor, Tensor]:
    """(norm(x + residual), x + residual), all [T, H], the last axis of residual contiguous; the sum is
    written over x, never over residual."""
    x = x.contiguous()
    out = torch.empty_like(x)
    _launch(x, residual, weight, out, x, eps, x.shape[0], 1, 0, True, early)
    return out, x


def _launch(
    x: Tensor, residual: Tensor, weight: Tensor, out: Tensor, total: Tensor, eps: float,
    rows: int, inner: int, stride_inner: int, add: bool, early: bool,
) -> None:  # fmt: skip
    if rows == 0:
        return
    size = x.shape[-1]
    block = power_of_two(size)
    tile = tile_rows(rows, block)
    _rms_norm[(triton.cdiv(rows, tile),)](
        x, residual, weight, out, total, rows, inner, x.stride(0), stride_inner, residual.stride(0), eps,
        H=size, ROWS=tile, BLOCK=block, ADD=add, num_warps=warps_for(tile * block // 2),
        **dependent(early),
    )  # fmt: skip
