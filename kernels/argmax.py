# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""The index of each row's largest value, in two launches: blocks of the row side by side, then their winners.

Reads the row once and writes nothing of its size. Legend: N rows, V columns, K blocks of a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import INTERPRETED, INTERPRETED_TILE, dependent, enter, jit, power_of_two

_MANY_ROWS = 32  # that fill a GPU with large blocks, each of which ends with an exchange among its warps


@jit
def _block_best(x_ptr, value_ptr, index_ptr, x_row, V: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    # Grid: (blocks, rows).
    enter(PDL)
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * x_row + column, mask=column < V, other=float("-inf")).to(tl.float32)
    value, index = tl.max(x, axis=0, return_indices=True)  # the first of equals
    cell = row * tl.num_programs(0) + tl.program_id(0)
    tl.store(value_ptr + cell, value)
    tl.store(index_ptr + cell, tl.program_id(0) * BLOCK + index)


@jit
def _best_of(value_ptr, index_ptr, best_ptr, K: tl.constexpr, K_P: tl.constexpr, PDL: tl.constexpr):
    enter(PDL)
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, K_P)
    values = tl.load(value_ptr + row * K + block, mask=block < K, other=float("-inf"))
    _, winner = tl.max(values, axis=0, return_indices=True)
    tl.store(best_ptr + row, tl.load(index_ptr + row * K + winner))


def argmax(x: Tensor, *, early: bool = False) -> Tensor:
    """int32 [N]: the first index of each row's largest value; x [N, V] of any precision, rows contiguous. A
    row of NaN has any index."""
    rows, columns = x.shape
    best = torch.empty(rows, dtype=torch.int32, device=x.device)
    if rows == 0:
        return best
    size, warps = (8192, 4) if rows >= _MANY_ROWS else (4096, 8)
    block = min(power_of_two(columns), INTERPRETED_TILE if INTERPRETED else size)
    blocks = triton.cdiv(columns, block)
    values = torch.empty((rows, blocks), dtype=torch.float32, device=x.device)
    index = torch.empty((rows, blocks), dtype=torch.int32, device=x.device)
    _block_best[(blocks, rows)](
        x, values, index, x.stride(0), V=columns, BLOCK=block, num_warps=warps, **dependent(early)
    )
    _best_of[(rows,)](
        values, index, best, K=blocks, K_P=power_of_two(blocks), num_warps=1, **dependent(early)
    )
    return best
