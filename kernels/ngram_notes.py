# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""Found continuations as a draft tree, and what is noted of them from step to step: a launch before a verify
pass and one after it.

Knows tokens and table rows, not how continuations were found.
Legend: B requests, K continuations, D tokens of each, W width (nodes), R table rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.batch import ABSENT as _ABSENT
from engine.batch import ROOT as _ROOT
from kernels.launch import INTERPRETED, dependent, enter, jit, power_of_two, tile_rows, warps_for

_GPU_ROWS = 128  # of a program that only gathers
ABSENT: tl.constexpr = tl.constexpr(_ABSENT)
ROOT: tl.constexpr = tl.constexpr(_ROOT)


@jit(do_not_specialize=["batch", "root_ptr", "rows_ptr", "found_row", "length_row"])
def _ngram_tree(
    root_ptr, found_ptr, length_ptr, rows_ptr, first_ptr, streak_ptr, tokens_ptr, parent_ptr, signal_ptr,
    batch, found_row, length_row,
    W: tl.constexpr, W_P: tl.constexpr, D: tl.constexpr, SHIFT: tl.constexpr, ROWS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    request = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    real = request < batch
    node = tl.arange(0, W_P)[None, :]
    inside = real[:, None] & (node < W)
    drafted = inside & (node > 0)
    row = tl.load(rows_ptr + request, mask=real, other=0)
    root = tl.load(root_ptr + request, mask=real, other=0)[:, None]
    token = tl.load(found_ptr + request[:, None] * found_row + node - 1, mask=drafted, other=-1)
    token = tl.where(node > 0, token, root)
    above = tl.where((node - 1) % D == 0, 0, node - 1)
    above = tl.where(node > 0, above, ROOT)
    cell = request[:, None] * W + node
    tl.store(tokens_ptr + cell, tl.maximum(token, 0), mask=inside)
    tl.store(parent_ptr + cell, tl.where(token >= 0, above, ABSENT), mask=inside)
    length = tl.load(length_ptr + request * length_row, mask=real, other=0)
    streak = tl.load(streak_ptr + row, mask=real, other=0)
    tl.store(signal_ptr + request, length + (streak << SHIFT), mask=real)
    first = tl.load(found_ptr + request * found_row, mask=real, other=-1)
    tl.store(first_ptr + row, first, mask=real)


@jit(do_not_specialize=["batch", "rows_ptr", "emitted_row"])
def _ngram_streak(
    emitted_ptr, rows_ptr, first_ptr, streak_ptr, batch, emitted_row, MOST: tl.constexpr,
    ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    request = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    real = request < batch
    row = tl.load(rows_ptr + request, mask=real, other=0)
    came = tl.load(emitted_ptr + request * emitted_row, mask=real, other=0)
    right = tl.load(first_ptr + row, mask=real, other=-1) == came
    streak = tl.minimum(tl.load(streak_ptr + row, mask=real, other=0) + 1, MOST)
    tl.store(streak_ptr + row, tl.where(right, streak, 0), mask=real)


def ngram_tree(
    root: Tensor, found: Tensor, length: Tensor, rows: Tensor, first: Tensor, streak: Tensor, width: int,
    shift: int, *, early: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(tokens, parent int32 [B, W], signal int32 [B] = length + (streak << shift)) of continuations: the best
    one first and whole, then the next as far as it fits; missing tokens are absent nodes.

    root: int32 [B]; found: int32 [B, K, D], the last two axes contiguous, -1 from where one ends, K * D at
    least W - 1; length: int32 [B, K] of each; rows: int64 [B]; first, streak: int32 [R]. Notes in `first` the
    first token of the best one.
    """
    batch, _, depth = found.shape
    tokens, parent = (torch.empty((batch, width), dtype=torch.int32, device=root.device) for _ in range(2))
    signal = torch.empty(batch, dtype=torch.int32, device=root.device)
    if batch:
        side = power_of_two(width)
        tile = tile_rows(batch, side)
        _ngram_tree[(triton.cdiv(batch, tile),)](
            root, found, length, rows, first, streak, tokens, parent, signal,
            batch, found.stride(0), length.stride(0),
            W=width, W_P=side, D=depth, SHIFT=shift, ROWS=tile, num_warps=warps_for(tile * side),
            **dependent(early),
        )  # fmt: skip
    return tokens, parent, signal


def ngram_streak(
    emitted: Tensor, rows: Tensor, first: Tensor, streak: Tensor, most: int, *, early: bool = False
) -> None:
    """Counts in `streak` int32 [R], up to `most`, how often in a row emitted[:, 0] was what `first` int32 [R]
    held: emitted int32 [B, W]; rows int64 [B]."""
    batch = rows.shape[0]
    if batch:
        tile = power_of_two(batch) if INTERPRETED else _GPU_ROWS
        _ngram_streak[(triton.cdiv(batch, tile),)](
            emitted, rows, first, streak, batch, emitted.stride(0), MOST=most, ROWS=tile, num_warps=4,
            **dependent(early),
        )  # fmt: skip
