# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""Takes the drafts of some requests away, and says whose: one launch.

Knows two limits and no drafter. Legend: B requests, W width (nodes), R table rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.batch import ABSENT as _ABSENT
from kernels.launch import dependent, enter, jit, power_of_two, tile_rows, warps_for

ABSENT: tl.constexpr = tl.constexpr(_ABSENT)


@jit(do_not_specialize=["batch", "longest", "parent_row", "start_ptr", "rows_ptr"])
def _silence(
    parent_ptr, start_ptr, rows_ptr, behind_ptr, present_ptr, signal_ptr, batch, longest, parent_row,
    W: tl.constexpr, W_P: tl.constexpr, MOST: tl.constexpr, LONG: tl.constexpr, BEHIND: tl.constexpr,
    ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    request = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    real = request < batch
    node = tl.arange(0, W_P)[None, :]
    inside = real[:, None] & (node < W)
    signal = tl.zeros((ROWS,), tl.int32)
    if LONG:
        length = tl.load(start_ptr + request, mask=real, other=0)
        signal += tl.where(length > longest, LONG, 0)
    if BEHIND:
        row = tl.load(rows_ptr + request, mask=real, other=0)
        signal += tl.where(tl.load(behind_ptr + row, mask=real, other=0) > MOST, BEHIND, 0)
    parent = tl.load(parent_ptr + request[:, None] * parent_row + node, mask=inside, other=ABSENT)
    mute = (signal > 0)[:, None] & (node > 0)
    tl.store(present_ptr + request[:, None] * W + node, tl.where(mute, ABSENT, parent), mask=inside)
    tl.store(signal_ptr + request, signal, mask=real)


def silence(
    parent: Tensor, start: Tensor, rows: Tensor, longest: int | None, behind: Tensor | None, most: int,
    bits: tuple[int, int], *, early: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(parent int32 [B, W], signal int32 [B]): no drafts for requests with start above `longest`, which adds
    bits[0] to the signal, nor with behind[row] above `most`, which adds bits[1]; None: no such limit.

    parent: int32 [B, W], last axis contiguous; start: int32 [B]; rows: int64 [B]; behind: int32 [R].
    """
    batch, width = parent.shape
    present = torch.empty((batch, width), dtype=torch.int32, device=parent.device)
    signal = torch.empty(batch, dtype=torch.int32, device=parent.device)
    if batch:
        side = power_of_two(width)
        tile = tile_rows(batch, side)
        _silence[(triton.cdiv(batch, tile),)](
            parent, start, rows, start if behind is None else behind, present, signal,
            batch, 0 if longest is None else longest, parent.stride(0),
            W=width, W_P=side, MOST=most, LONG=0 if longest is None else bits[0],
            BEHIND=0 if behind is None else bits[1], ROWS=tile, num_warps=warps_for(tile * side),
            **dependent(early),
        )  # fmt: skip
    return present, signal
