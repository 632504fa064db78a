# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""What a decode step reads of the request table before its layers: lengths and last tokens, the places that a
chain of drafts will take, then the nodes as token ids, positions and KV slots. One launch each.

Knows rows, pages and depths; no drafter. Legend: B requests, W width (nodes), R table rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.batch import ABSENT as _ABSENT
from kernels.launch import INTERPRETED, dependent, enter, jit, power_of_two, tile_rows, warps_for

_GPU_ROWS = 128  # of a program that only gathers
_ALIGNED = 4  # int32 in 16 bytes: kernels are compiled anew for pointers that are not so aligned
ABSENT: tl.constexpr = tl.constexpr(_ABSENT)


@jit(do_not_specialize=["batch", "rows_ptr"])
def _opening(
    rows_ptr, lens_ptr, tokens_ptr, out_len_ptr, out_token_ptr, batch, tokens_row, ROWS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    request = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = request < batch
    row = tl.load(rows_ptr + request, mask=real, other=0)
    length = tl.load(lens_ptr + row, mask=real, other=0)
    token = tl.load(tokens_ptr + row * tokens_row + length, mask=real, other=0)
    tl.store(out_len_ptr + request, length, mask=real)
    tl.store(out_token_ptr + request, token, mask=real)


@jit(do_not_specialize=["batch", "padded", "rows_ptr", "start_ptr", "root_ptr"])
def _chain_places(
    start_ptr, rows_ptr, table_ptr, root_ptr, lens_ptr, positions_ptr, slots_ptr, tokens_ptr,
    batch, padded, table_row,
    STEPS: tl.constexpr, STEPS_P: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    request = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    real = request < batch
    step = tl.arange(0, STEPS_P)[None, :]
    inside = real[:, None] & (step < STEPS)
    length = tl.load(start_ptr + request, mask=real, other=0)[:, None] + step
    row = tl.load(rows_ptr + request, mask=real, other=0)[:, None]
    place = length.to(tl.int64)
    page = tl.load(table_ptr + row * table_row + place // PAGE, mask=inside, other=0).to(tl.int64)
    cell = step * padded + request[:, None]
    tl.store(lens_ptr + cell, length, mask=inside)
    tl.store(positions_ptr + cell, place, mask=inside)
    tl.store(slots_ptr + cell, page * PAGE + place % PAGE, mask=inside)
    root = tl.load(root_ptr + request, mask=real, other=0)
    tl.store(tokens_ptr + request * (STEPS + 2), root, mask=real)


@jit(do_not_specialize=["batch", "rows_ptr", "start_ptr", "tokens_row", "parent_row"])
def _node_inputs(
    tokens_ptr, parent_ptr, depth_ptr, start_ptr, rows_ptr, most_ptr, table_ptr,
    ids_ptr, positions_ptr, slots_ptr, present_ptr, batch, tokens_row, parent_row, table_row,
    W: tl.constexpr, W_P: tl.constexpr, PAGE: tl.constexpr, TREE: tl.constexpr, LIMIT: tl.constexpr,
    ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    request = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    real = request < batch
    node = tl.arange(0, W_P)[None, :]
    inside = real[:, None] & (node < W)
    start = tl.load(start_ptr + request, mask=real, other=0).to(tl.int64)[:, None]
    row = tl.load(rows_ptr + request, mask=real, other=0)
    cell = request[:, None] * W + node
    place = start + node
    depth = (place - start).to(tl.int64)
    if TREE:
        depth = tl.load(depth_ptr + cell, mask=inside, other=0)
    page = tl.load(table_ptr + row[:, None] * table_row + place // PAGE, mask=inside, other=0).to(tl.int64)
    token = tl.load(tokens_ptr + request[:, None] * tokens_row + node, mask=inside, other=0)
    tl.store(ids_ptr + cell, token.to(tl.int64), mask=inside)
    tl.store(positions_ptr + cell, start + depth, mask=inside)
    tl.store(slots_ptr + cell, page * PAGE + place % PAGE, mask=inside)
    if LIMIT:
        most = tl.load(most_ptr + row, mask=real, other=0)[:, None]
        parent = tl.load(parent_ptr + request[:, None] * parent_row + node, mask=inside, other=ABSENT)
        tl.store(present_ptr + cell, tl.where(depth > most, ABSENT, parent), mask=inside)


def opening(rows: Tensor, seq_lens: Tensor, tokens: Tensor, *, early: bool = False) -> tuple[Tensor, Tensor]:
    """rows: int64 [B]; seq_lens: int32 [R]; tokens: int32 [R, C]. Returns (length, the token there), int32
    [B] each."""
    batch = rows.shape[0]
    lens, last = (torch.empty(batch, dtype=torch.int32, device=rows.device) for _ in range(2))
    if batch:
        tile = power_of_two(batch) if INTERPRETED else _GPU_ROWS
        _opening[(triton.cdiv(batch, tile),)](
            rows, seq_lens, tokens, lens, last, batch, tokens.stride(0), ROWS=tile, num_warps=4,
            **dependent(early),
        )  # fmt: skip
    return lens, last


def chain_places(
    start: Tensor, rows: Tensor, page_table: Tensor, page_size: int, steps: int, root: Tensor, *,
    early: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """start: int32 [B]; rows: int64 [B]; page_table: int32 [R, P]; root: int32 [B]. Returns (start + i int32,
    the same as positions int64, their KV slots int64), [steps, B] each, of which every row starts aligned,
    and int32 [B, steps + 2] whose first column is the root, the rest unset."""
    batch = rows.shape[0]
    padded = -(-batch // _ALIGNED) * _ALIGNED
    lens = torch.empty((steps, padded), dtype=torch.int32, device=rows.device)
    positions, slots = (torch.empty((steps, padded), dtype=torch.int64, device=rows.device) for _ in range(2))
    tokens = root.new_empty(batch, steps + 2)
    if batch:
        side = power_of_two(max(steps, 1))
        tile = tile_rows(batch, side)
        _chain_places[(triton.cdiv(batch, tile),)](
            start, rows, page_table, root, lens, positions, slots, tokens,
            batch, padded, page_table.stride(0),
            STEPS=steps, STEPS_P=side, PAGE=page_size, ROWS=tile, num_warps=warps_for(tile * side),
            **dependent(early),
        )  # fmt: skip
    return lens[:, :batch], positions[:, :batch], slots[:, :batch], tokens


@dataclass(frozen=True)
class Limit:
    """Which nodes count: parent int32 [B, W], last axis contiguous; most int32 [R], the deepest of a row."""

    parent: Tensor
    most: Tensor


def node_inputs(
    tokens: Tensor, depth: Tensor | None, start: Tensor, rows: Tensor, page_table: Tensor, page_size: int,
    limit: Limit | None = None, *, early: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """tokens: int32 [B, W], last axis contiguous; depth: int64 [B, W], contiguous, None for chains; start:
    int32 [B]; rows: int64 [B]; page_table: int32 [R, P]. Returns (ids, positions, slots), int64 [B * W], and
    the parents int32 [B, W] with nodes past the limit absent, without a meaning where there is none."""
    batch, width = tokens.shape
    made = [torch.empty(batch * width, dtype=torch.int64, device=tokens.device) for _ in range(3)]
    kept = tokens if limit is None else torch.empty((batch, width), dtype=torch.int32, device=tokens.device)
    if batch:
        side = power_of_two(width)
        tile = tile_rows(batch, side)
        parent, most = (tokens, rows) if limit is None else (limit.parent, limit.most)
        _node_inputs[(triton.cdiv(batch, tile),)](
            tokens, parent, tokens if depth is None else depth, start, rows, most, page_table, *made, kept,
            batch, tokens.stride(0), parent.stride(0), page_table.stride(0),
            W=width, W_P=side, PAGE=page_size, TREE=depth is not None, LIMIT=limit is not None, ROWS=tile,
            num_warps=warps_for(tile * side), **dependent(early),
        )  # fmt: skip
    return made[0], made[1], made[2], kept
