# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""Rows of a matrix by their indices, one behind the other: an embedding, or what a table of requests keeps.

Knows rows of numbers, not what they mean. Legend: V rows of the matrix, N rows asked for, H size of a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import INTERPRETED, dependent, enter, jit, power_of_two, tile_rows, warps_for

_GPU_BLOCK = 1024  # small, so that the few rows of a decode step are fetched by many programs


@jit(do_not_specialize=["rows", "index_ptr", "index_row"])
def _gather_rows(
    x_ptr, index_ptr, out_ptr, rows, x_row, index_row,
    H: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Grid: (blocks of rows, blocks of H).
    enter(PDL)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    source = tl.load(index_ptr + row * index_row, mask=row < rows, other=0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (col < H)[None, :]
    x = tl.load(x_ptr + source[:, None] * x_row + col[None, :], mask=inside, other=0.0)
    tl.store(out_ptr + row[:, None] * H + col[None, :], x, mask=inside)


def gather_rows(x: Tensor, index: Tensor, *, early: bool = False) -> Tensor:
    """x [V, H], last axis contiguous; index int32 or int64 [N], of any stride -> [N, H]. early: see
    kernels.launch.dependent."""
    rows, size = index.shape[0], x.shape[1]
    out = torch.empty((rows, size), dtype=x.dtype, device=x.device)
    if rows:
        block = power_of_two(size) if INTERPRETED else min(power_of_two(size), _GPU_BLOCK)
        tile = tile_rows(rows, block)
        _gather_rows[(triton.cdiv(rows, tile), triton.cdiv(size, block))](
            x, index, out, rows, x.stride(0), index.stride(0),
            H=size, ROWS=tile, BLOCK=block, num_warps=warps_for(tile * block), **dependent(early),
        )  # fmt: skip
    return out
