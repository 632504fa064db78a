# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""What a decode step reads of the request table before its layers: lengths and last tokens, then the nodes of
its drafts as token ids, positions and KV slots. One launch each.

Knows rows, pages and depths; no drafter. Legend: B requests, W width (nodes), R table rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import INTERPRETED, jit, power_of_two, tile_rows, warps_for

_GPU_ROWS = 128  # of a program that only gathers


@jit(do_not_specialize=["batch", "rows_ptr"])
def _opening(
    rows_ptr, lens_ptr, tokens_ptr, out_len_ptr, out_token_ptr, batch, tokens_row, ROWS: tl.constexpr
):
    request = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = request < batch
    row = tl.load(rows_ptr + request, mask=real, other=0)
    length = tl.load(lens_ptr + row, mask=real, other=0)
    token = tl.load(tokens_ptr + row * tokens_row + length, mask=real, other=0)
    tl.store(out_len_ptr + request, length, mask=real)
    tl.store(out_token_ptr + request, token, mask=real)


@jit(do_not_specialize=["batch", "rows_ptr", "start_ptr"])
def _node_inputs(
    tokens_ptr, depth_ptr, start_ptr, rows_ptr, table_ptr, ids_ptr, positions_ptr, slots_ptr,
    batch, tokens_row, table_row,
    W: tl.constexpr, W_P: tl.constexpr, PAGE: tl.constexpr, TREE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    request = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    real = request < batch
    node = tl.arange(0, W_P)[None, :]
    inside = real[:, None] & (node < W)
    start = tl.load(start_ptr + request, mask=real, other=0).to(tl.int64)[:, None]
    row = tl.load(rows_ptr + request, mask=real, other=0)[:, None]
    cell = request[:, None] * W + node
    place = start + node
    position = place
    if TREE:
        position = start + tl.load(depth_ptr + cell, mask=inside, other=0)
    page = tl.load(table_ptr + row * table_row + place // PAGE, mask=inside, other=0).to(tl.int64)
    token = tl.load(tokens_ptr + request[:, None] * tokens_row + node, mask=inside, other=0)
    tl.store(ids_ptr + cell, token.to(tl.int64), mask=inside)
    tl.store(positions_ptr + cell, position, mask=inside)
    tl.store(slots_ptr + cell, page * PAGE + place % PAGE, mask=inside)


def opening(rows: Tensor, seq_lens: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """rows: int64 [B]; seq_lens: int32 [R]; tokens: int32 [R, C]. Returns (length, the token there), int32
    [B] each."""
    batch = rows.shape[0]
    lens, last = (torch.empty(batch, dtype=torch.int32, device=rows.device) for _ in range(2))
    if batch:
        tile = power_of_two(batch) if INTERPRETED else _GPU_ROWS
        _opening[(triton.cdiv(batch, tile),)](
            rows, seq_lens, tokens, lens, last, batch, tokens.stride(0), ROWS=tile, num_warps=4
        )
    return lens, last


def node_inputs(
    tokens: Tensor, depth: Tensor | None, start: Tensor, rows: Tensor, page_table: Tensor, page_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """tokens: int32 [B, W], last axis contiguous; depth: int64 [B, W], contiguous, None for chains; start:
    int32 [B]; rows: int64 [B]; page_table: int32 [R, P]. Returns (ids, positions, slots), int64 [B * W]."""
    batch, width = tokens.shape
    made = [torch.empty(batch * width, dtype=torch.int64, device=tokens.device) for _ in range(3)]
    if batch:
        side = power_of_two(width)
        tile = tile_rows(batch, side)
        _node_inputs[(triton.cdiv(batch, tile),)](
            tokens, tokens if depth is None else depth, start, rows, page_table, *made,
            batch, tokens.stride(0), page_table.stride(0),
            W=width, W_P=side, PAGE=page_size, TREE=depth is not None, ROWS=tile,
            num_warps=warps_for(tile * side),
        )  # fmt: skip
    return made[0], made[1], made[2]
