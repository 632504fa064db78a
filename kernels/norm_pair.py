# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""Root mean square norms of two tensors, side by side in one: what an EAGLE3 draft layer begins with.

Zhang & Sennrich 2019, eq. 4. Knows nothing of layers. Legend: T tokens, V rows of a table, H normalised size.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import dependent, enter, jit, power_of_two, tile_rows, warps_for


@jit
def _normed(x_ptr, weight, out_ptr, at, inside, eps, H: tl.constexpr):
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / H + eps)
    return ((x * scale[:, None]).to(dtype).to(tl.float32) * weight.to(tl.float32)[None, :]).to(dtype)


@jit(do_not_specialize=["rows", "index_ptr", "index_row"])
def _norm_pair(
    a_ptr, index_ptr, a_weight_ptr, b_ptr, b_weight_ptr, out_ptr, rows, a_stride, index_row, b_stride, eps,
    H: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, LOOKUP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Grid: (blocks of rows, 2 sides). LOOKUP: the rows of a are those that the index names.
    side = tl.program_id(1)
    col = tl.arange(0, BLOCK)
    if side == 0:
        weight = tl.load(a_weight_ptr + col, mask=col < H, other=0.0)
    else:
        weight = tl.load(b_weight_ptr + col, mask=col < H, other=0.0)
    enter(PDL)  # the weight is on its way while the kernel in front ends
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    inside = (row < rows)[:, None] & (col < H)[None, :]
    if side == 0:
        source = row
        if LOOKUP:
            source = tl.load(index_ptr + row * index_row, mask=row < rows, other=0).to(tl.int64)
        out = _normed(a_ptr, weight, out_ptr, source[:, None] * a_stride + col, inside, eps, H)
    else:
        out = _normed(b_ptr, weight, out_ptr, row[:, None] * b_stride + col, inside, eps, H)
    tl.store(out_ptr + row[:, None] * (2 * H) + side * H + col[None, :], out, mask=inside)


def norm_pair(
    a: Tensor, a_weight: Tensor, b: Tensor, b_weight: Tensor, eps: float, index: Tensor | None = None, *,
    early: bool = False,
) -> Tensor:  # fmt: skip
    """a, b [T, H], last axis contiguous; weights [H] -> [T, 2H], the normed a first. Rounded as rms_norm is.

    index: int32 or int64 [T], of any stride: a is a table [V, H] whose rows these are. early: see
    kernels.launch.dependent.
    """
    rows, size = b.shape
    out = a.new_empty((rows, 2 * size))
    at = a if index is None else index
    if rows:
        block = power_of_two(size)
        tile = tile_rows(rows, block)
        _norm_pair[(triton.cdiv(rows, tile), 2)](
            a, at, a_weight, b, b_weight, out, rows, a.stride(0), at.stride(0), b.stride(0), eps,
            H=size, ROWS=tile, BLOCK=block, LOOKUP=index is not None, num_warps=warps_for(tile * block // 2),
            **dependent(early),
        )  # fmt: skip
    return out
