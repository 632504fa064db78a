# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""Picks rows of a pass: those of each request's accepted path, or the one that a table of requests keeps.

Knows rows of numbers, not what they mean. Legend: B requests, W nodes of each, R table rows, H size of a row.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import INTERPRETED, dependent, enter, jit, power_of_two, warps_for

_GPU_BLOCK = 1024


@jit(do_not_specialize=["index_row", "count", "index_ptr", "rows_ptr"])
def _keep_last(
    x_ptr, residual_ptr, index_ptr, rows_ptr, state_ptr, x_row, residual_row, index_row, count,
    H: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Grid: (requests, blocks of H).
    enter(PDL)
    request = tl.program_id(0).to(tl.int64)
    source = request * count + tl.load(index_ptr + request * index_row)
    row = tl.load(rows_ptr + request)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = col < H
    x = tl.load(x_ptr + source * x_row + col, mask=inside, other=0.0)
    if ADD:
        beside = tl.load(residual_ptr + source * residual_row + col, mask=inside, other=0.0)
        x = x.to(tl.float32) + beside.to(tl.float32)
    tl.store(state_ptr + row * H + col, x.to(state_ptr.dtype.element_ty), mask=inside)


@jit(do_not_specialize=["index_row", "count", "width"])
def _path_rows(
    x_ptr, index_ptr, out_ptr, x_row, index_row, count, width, H: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    # Grid: (requests * count, blocks of H).
    enter(PDL)
    target = tl.program_id(0).to(tl.int64)
    request = target // count
    node = tl.load(index_ptr + request * index_row + target % count)
    source = request * width + tl.maximum(node, 0)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + source * x_row + col, mask=col < H, other=0.0)
    tl.store(out_ptr + target * H + col, x, mask=col < H)


def path_rows(x: Tensor, index: Tensor, count: int, *, early: bool = False) -> Tensor:
    """[B * count, H]: rows index[b, :count] of each request's W in x [B * W, H], last axis contiguous; index:
    int32 [B, W], last axis contiguous; negative ones stand for 0."""
    batch, width = index.shape
    size = x.shape[1]
    out = x.new_empty(batch * count, size)
    if batch:
        block = power_of_two(size) if INTERPRETED else min(power_of_two(size), _GPU_BLOCK)
        _path_rows[(batch * count, triton.cdiv(size, block))](
            x, index, out, x.stride(0), index.stride(0), count, width,
            H=size, BLOCK=block, num_warps=warps_for(block), **dependent(early),
        )  # fmt: skip
    return out


def keep_last(
    kept: Tensor, rows: Tensor, x: Tensor, residual: Tensor | None, index: Tensor, count: int, *,
    early: bool = False,
) -> None:  # fmt: skip
    """kept[rows[b]] = (x + residual)[b * count + index[b]]: kept [R, H], contiguous; rows int64 [B]; x and
    residual [B * count, H], last axis contiguous; index int32 [B]."""
    batch, size = rows.shape[0], kept.shape[1]
    if batch:
        block = power_of_two(size) if INTERPRETED else min(power_of_two(size), _GPU_BLOCK)
        beside = x if residual is None else residual
        _keep_last[(batch, triton.cdiv(size, block))](
            x, beside, index, rows, kept, x.stride(0), beside.stride(0), index.stride(0), count,
            H=size, BLOCK=block, ADD=residual is not None, num_warps=warps_for(block), **dependent(early),
        )  # fmt: skip
