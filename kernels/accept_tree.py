# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""The walk along the accepted drafts and the cut at a stop id or the length, in one launch.

The rules are those of the torch reference, `speculative.accept`; it knows tokens and parents, not how either
was made. Legend: B requests, W width (nodes), R table rows, S stop ids a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import jit, power_of_two, tile_rows, warps_for

STOP: tl.constexpr = tl.constexpr(1)  # the values of engine.batch.Finish
LENGTH: tl.constexpr = tl.constexpr(2)


@jit
def _end_of(
    emitted, last, request, real, lens_ptr, rows_ptr, stop_ptr, min_ptr, max_ptr, stop_row,
    W: tl.constexpr, W_P: tl.constexpr, STOPS: tl.constexpr, STOPS_P: tl.constexpr,
):  # fmt: skip
    # emitted [ROWS, W_P], last valid index [ROWS] -> tokens kept and finish, each [ROWS]
    length = tl.load(lens_ptr + request, mask=real, other=0)
    row = tl.load(rows_ptr + request, mask=real, other=0)
    earliest = tl.load(min_ptr + row, mask=real, other=0) - 1 - length
    at_length = tl.maximum(tl.load(max_ptr + row, mask=real, other=0) - 2 - length, 0)
    each = tl.arange(0, STOPS_P)
    known = real[:, None] & (each < STOPS)[None, :]
    stops = tl.load(stop_ptr + (row * stop_row)[:, None] + each[None, :], mask=known, other=-1)
    hit = tl.max((emitted[:, :, None] == stops[:, None, :]).to(tl.int32), axis=2) > 0
    step = tl.arange(0, W_P)[None, :]
    stopped = hit & (step >= earliest[:, None]) & (step < W)
    at_stop = tl.min(tl.where(stopped, step, W), axis=1)
    end = tl.minimum(at_stop, at_length)
    reason = tl.where(at_stop <= at_length, STOP, LENGTH)
    return tl.minimum(end, last) + 1, tl.where(end <= last, reason, 0)


@jit(do_not_specialize=["batch"])
def _accept_tree(
    tokens_ptr, parent_ptr, target_ptr, lens_ptr, rows_ptr, stop_ptr, min_ptr, max_ptr,
    index_ptr, accepted_ptr, emitted_ptr, kept_ptr, finish_ptr,
    batch, tokens_row, parent_row, target_row, stop_row,
    W: tl.constexpr, W_P: tl.constexpr, STOPS: tl.constexpr, STOPS_P: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    request = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    real = request < batch
    node = tl.arange(0, W_P)[None, :]
    inside = real[:, None] & (node < W)
    tokens = tl.load(tokens_ptr + request[:, None] * tokens_row + node, mask=inside, other=-1)
    parent = tl.load(parent_ptr + request[:, None] * parent_row + node, mask=inside, other=-2)
    target = tl.load(target_ptr + request[:, None] * target_row + node, mask=inside, other=0)

    here = tl.full((ROWS,), 0, tl.int32)  # W once the walk has ended
    path = tl.full((ROWS, W_P), -1, tl.int32)
    emitted = tl.full((ROWS, W_P), 0, tl.int32)
    for step in range(W):
        wanted = tl.sum(tl.where(node == here[:, None], target, 0), axis=1)
        now = (node == step) & (here < W)[:, None]
        path = tl.where(now, here[:, None], path)
        emitted = tl.where(now, wanted[:, None], emitted)
        follows = (parent == here[:, None]) & (tokens == wanted[:, None]) & inside
        here = tl.min(tl.where(follows, node, W), axis=1)
    last = tl.sum((path >= 0).to(tl.int32), axis=1) - 1
    kept, finish = _end_of(
        emitted, last, request, real, lens_ptr, rows_ptr, stop_ptr, min_ptr, max_ptr, stop_row,
        W, W_P, STOPS, STOPS_P,
    )  # fmt: skip
    cell = request[:, None] * W + node
    tl.store(index_ptr + cell, path, mask=inside)
    tl.store(emitted_ptr + cell, emitted, mask=inside)
    tl.store(accepted_ptr + request, last, mask=real)
    tl.store(kept_ptr + request, kept, mask=real)
    tl.store(finish_ptr + request, finish, mask=real)


@jit(do_not_specialize=["batch"])
def _trim_run(
    emitted_ptr, count_ptr, lens_ptr, rows_ptr, stop_ptr, min_ptr, max_ptr, kept_ptr, finish_ptr,
    batch, emitted_row, stop_row,
    W: tl.constexpr, W_P: tl.constexpr, STOPS: tl.constexpr, STOPS_P: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    request = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    real = request < batch
    node = tl.arange(0, W_P)[None, :]
    inside = real[:, None] & (node < W)
    emitted = tl.load(emitted_ptr + request[:, None] * emitted_row + node, mask=inside, other=-1)
    last = tl.load(count_ptr + request, mask=real, other=1) - 1
    kept, finish = _end_of(
        emitted, last, request, real, lens_ptr, rows_ptr, stop_ptr, min_ptr, max_ptr, stop_row,
        W, W_P, STOPS, STOPS_P,
    )  # fmt: skip
    tl.store(kept_ptr + request, kept, mask=real)
    tl.store(finish_ptr + request, finish, mask=real)


@dataclass(frozen=True)
class Ends:
    """Where runs end: seq_lens int32 [B] before the pass; rows int64 [B] into the columns stop_ids int32
    [R, S] (-1 padded, last axis contiguous), min_len and max_len int32 [R]."""

    seq_lens: Tensor
    rows: Tensor
    stop_ids: Tensor
    min_len: Tensor
    max_len: Tensor


@dataclass(frozen=True)
class Walk:
    """accept_index, emitted: int32 [B, W], -1 and 0 past the path; n_accepted, n_emitted, finish: int32
    [B]."""

    accept_index: Tensor
    n_accepted: Tensor
    emitted: Tensor
    n_emitted: Tensor
    finish: Tensor


def accept_tree(tokens: Tensor, parent: Tensor, target: Tensor, ends: Ends) -> Walk:
    """tokens, parent, target: int32 [B, W], last axis contiguous; follows the first child that holds the
    target's token after a node, from node 0 on, then cuts the emitted run."""
    batch, width = target.shape
    index, emitted = (torch.empty((batch, width), dtype=torch.int32, device=target.device) for _ in range(2))
    taken, kept, finish = (torch.empty(batch, dtype=torch.int32, device=target.device) for _ in range(3))
    if batch:
        grid, sizes = _launch(batch, width, ends)
        _accept_tree[grid](
            tokens, parent, target, ends.seq_lens, ends.rows, ends.stop_ids, ends.min_len, ends.max_len,
            index, taken, emitted, kept, finish, batch, tokens.stride(0), parent.stride(0), target.stride(0),
            ends.stop_ids.stride(0), **sizes,
        )  # fmt: skip
    return Walk(index, taken, emitted, kept, finish)


def trim_run(emitted: Tensor, n_emitted: Tensor, ends: Ends) -> tuple[Tensor, Tensor]:
    """emitted: int32 [B, W], last axis contiguous, of which the first n_emitted int32 [B] are valid; returns
    (n_emitted, finish), int32 [B] each, after the cut."""
    batch, width = emitted.shape
    kept, finish = (torch.empty(batch, dtype=torch.int32, device=emitted.device) for _ in range(2))
    if batch:
        grid, sizes = _launch(batch, width, ends)
        _trim_run[grid](
            emitted, n_emitted, ends.seq_lens, ends.rows, ends.stop_ids, ends.min_len, ends.max_len,
            kept, finish, batch, emitted.stride(0), ends.stop_ids.stride(0), **sizes,
        )  # fmt: skip
    return kept, finish


def _launch(batch: int, width: int, ends: Ends) -> tuple[tuple[int], dict[str, int]]:
    side, stops = power_of_two(width), ends.stop_ids.shape[1]
    cells = side * power_of_two(stops)
    rows = tile_rows(batch, cells)
    sizes = {"W": width, "W_P": side, "STOPS": stops, "STOPS_P": power_of_two(stops), "ROWS": rows}
    return (triton.cdiv(batch, rows),), sizes | {"num_warps": warps_for(rows * cells)}
