# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""Up to three tensors beside each other in one, the last of them perhaps a sum still to be made: one launch.

Knows rows of numbers, not what they mean. Legend: T tokens, H size of a part's row.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import INTERPRETED, dependent, enter, jit, power_of_two, tile_rows, warps_for

PARTS = 3  # of one launch
_GPU_BLOCK = 1024


@jit(do_not_specialize=["rows"])
def _side_by_side(
    a_ptr, b_ptr, c_ptr, added_ptr, out_ptr, rows, a_row, b_row, c_row, added_row, out_row,
    H: tl.constexpr, LAST: tl.constexpr, ADD: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    # Grid: (blocks of rows, parts, blocks of H). ADD: something is added to part LAST.
    enter(PDL)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    part = tl.program_id(1)
    col = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (col < H)
    x = tl.load(a_ptr + row * a_row + col, mask=inside & (part == 0), other=0.0)
    if LAST > 0:
        x = tl.where(part == 1, tl.load(b_ptr + row * b_row + col, mask=inside & (part == 1), other=0.0), x)
    if LAST > 1:
        x = tl.where(part == 2, tl.load(c_ptr + row * c_row + col, mask=inside & (part == 2), other=0.0), x)
    if ADD:
        more = inside & (part == LAST)
        beside = tl.load(added_ptr + row * added_row + col, mask=more, other=0.0)
        x = tl.where(part == LAST, x.to(tl.float32) + beside.to(tl.float32), x.to(tl.float32))
    tl.store(out_ptr + row * out_row + part * H + col, x.to(out_ptr.dtype.element_ty), mask=inside)


def side_by_side(parts: list[Tensor], added: Tensor | None, out: Tensor, *, early: bool = False) -> None:
    """out [T, n * H] gets n <= PARTS parts [T, H]; `added` [T, H] is added to the last. The last axis of all
    contiguous. early: see kernels.launch.dependent."""
    rows, size = parts[0].shape
    if rows == 0:
        return
    a, b, c = [*parts, parts[0], parts[0]][:PARTS]
    extra = a if added is None else added
    block = power_of_two(size) if INTERPRETED else min(power_of_two(size), _GPU_BLOCK)
    tile = tile_rows(rows, block)
    _side_by_side[(triton.cdiv(rows, tile), len(parts), triton.cdiv(size, block))](
        a, b, c, extra, out, rows, a.stride(0), b.stride(0), c.stride(0), extra.stride(0), out.stride(0),
        H=size, LAST=len(parts) - 1, ADD=added is not None, ROWS=tile, BLOCK=block,
        num_warps=warps_for(tile * block), **dependent(early),
    )  # fmt: skip
