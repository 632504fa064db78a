# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""The walk along the accepted drafts, the cut at a stop id or the length, the entry into the request table,
what the host is told: one launch.

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


@jit
def _leave(
    emitted, kept, finish, accepted, drafted, request, real, inside, node, lens_ptr, rows_ptr, signal_ptr,
    table_ptr, table_lens_ptr, packed_ptr, table_row,
    W: tl.constexpr, SIGNAL: tl.constexpr, COMMIT: tl.constexpr,
):  # fmt: skip
    # Packed rows for the host, and the run's tokens and length into the table.
    signal = tl.zeros_like(kept)
    if SIGNAL:
        signal = tl.load(signal_ptr + request, mask=real, other=0)
    packed = packed_ptr + request * (W + 5)
    tl.store(packed[:, None] + node, emitted, mask=inside)
    tl.store(packed + W, kept, mask=real)
    tl.store(packed + W + 1, finish, mask=real)
    tl.store(packed + W + 2, accepted, mask=real)
    tl.store(packed + W + 3, drafted, mask=real)
    tl.store(packed + W + 4, signal, mask=real)
    if COMMIT:
        length = tl.load(lens_ptr + request, mask=real, other=0)
        row = tl.load(rows_ptr + request, mask=real, other=0)
        place = (row * table_row + length + 1)[:, None] + node
        tl.store(table_ptr + place, emitted, mask=inside)
        tl.store(table_lens_ptr + row, tl.where(row > 0, length + kept, 0), mask=real)


@jit(
    do_not_specialize=[
        "batch", "lens_ptr", "rows_ptr", "signal_ptr", "tokens_row", "parent_row", "target_row"
    ]
)  # fmt: skip
def _accept_tree(
    tokens_ptr, parent_ptr, target_ptr, lens_ptr, rows_ptr, stop_ptr, min_ptr, max_ptr, signal_ptr,
    index_ptr, packed_ptr, table_ptr, table_lens_ptr,
    batch, tokens_row, parent_row, target_row, stop_row, table_row,
    W: tl.constexpr, W_P: tl.constexpr, STOPS: tl.constexpr, STOPS_P: tl.constexpr, ROWS: tl.constexpr,
    SIGNAL: tl.constexpr, COMMIT: tl.constexpr,
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
    tl.store(index_ptr + request[:, None] * W + node, path, mask=inside)
    drafted = tl.sum((parent >= 0).to(tl.int32), axis=1)
    _leave(
        emitted, kept, finish, last, drafted, request, real, inside, node, lens_ptr, rows_ptr, signal_ptr,
        table_ptr, table_lens_ptr, packed_ptr, table_row, W, SIGNAL, COMMIT,
    )  # fmt: skip


@jit(
    do_not_specialize=[
        "batch", "lens_ptr", "rows_ptr", "signal_ptr", "emitted_row", "accepted_row", "parent_row"
    ]
)  # fmt: skip
def _enter_run(
    emitted_ptr, accepted_ptr, parent_ptr, lens_ptr, rows_ptr, stop_ptr, min_ptr, max_ptr, signal_ptr,
    packed_ptr, table_ptr, table_lens_ptr,
    batch, emitted_row, accepted_row, parent_row, stop_row, table_row,
    W: tl.constexpr, W_P: tl.constexpr, STOPS: tl.constexpr, STOPS_P: tl.constexpr, ROWS: tl.constexpr,
    DRAFTED: tl.constexpr, SIGNAL: tl.constexpr, COMMIT: tl.constexpr,
):  # fmt: skip
    request = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    real = request < batch
    node = tl.arange(0, W_P)[None, :]
    inside = real[:, None] & (node < W)
    emitted = tl.load(emitted_ptr + request[:, None] * emitted_row + node, mask=inside, other=-1)
    last = tl.load(accepted_ptr + request * accepted_row, mask=real, other=0)
    kept, finish = _end_of(
        emitted, last, request, real, lens_ptr, rows_ptr, stop_ptr, min_ptr, max_ptr, stop_row,
        W, W_P, STOPS, STOPS_P,
    )  # fmt: skip
    drafted = tl.zeros_like(kept)
    if DRAFTED:
        parent = tl.load(parent_ptr + request[:, None] * parent_row + node, mask=inside, other=-2)
        drafted = tl.sum((parent >= 0).to(tl.int32), axis=1)
    _leave(
        emitted, kept, finish, last, drafted, request, real, inside, node, lens_ptr, rows_ptr, signal_ptr,
        table_ptr, table_lens_ptr, packed_ptr, table_row, W, SIGNAL, COMMIT,
    )  # fmt: skip


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
class Table:
    """Where runs are entered: tokens int32 [R, C], seq_lens int32 [R]; row 0 keeps length 0."""

    tokens: Tensor
    seq_lens: Tensor


@dataclass(frozen=True)
class Walk:
    """packed: int32 [B, W + 5] = emitted tokens, tokens kept, finish, drafts accepted, nodes drafted, signal.
    accept_index: int32 [B, W], -1 past the path, after which emitted tokens are 0. The rest are views."""

    accept_index: Tensor
    packed: Tensor

    def column(self, place: int) -> Tensor:
        """int32 [B]: a figure behind the tokens, 0 for the number of tokens kept."""
        return self.packed[:, self.packed.shape[1] - 5 + place]

    @property
    def emitted(self) -> Tensor:
        """int32 [B, W]."""
        return self.packed[:, :-5]


def accept_tree(
    tokens: Tensor, parent: Tensor, target: Tensor, ends: Ends, signal: Tensor | None = None,
    table: Table | None = None,
) -> Walk:  # fmt: skip
    """tokens, parent, target: int32 [B, W], last axis contiguous; signal: int32 [B]. Follows the first child
    that holds the target's token after a node, from node 0 on, cuts the emitted run, and enters it."""
    batch, width = target.shape
    index = torch.empty((batch, width), dtype=torch.int32, device=target.device)
    packed = torch.empty((batch, width + 5), dtype=torch.int32, device=target.device)
    if batch:
        grid, sizes = _launch(batch, width, ends)
        into = (index, index) if table is None else (table.tokens, table.seq_lens)
        _accept_tree[grid](
            tokens, parent, target, ends.seq_lens, ends.rows, ends.stop_ids, ends.min_len, ends.max_len,
            index if signal is None else signal, index, packed, *into,
            batch, tokens.stride(0), parent.stride(0), target.stride(0), ends.stop_ids.stride(0),
            into[0].stride(0), SIGNAL=signal is not None, COMMIT=table is not None, **sizes,
        )  # fmt: skip
    return Walk(index, packed)


def enter_run(
    emitted: Tensor, n_accepted: Tensor, ends: Ends, parent: Tensor | None = None,
    signal: Tensor | None = None, table: Table | None = None,
) -> Tensor:  # fmt: skip
    """emitted: int32 [B, W], last axis contiguous, of which the first n_accepted + 1, int32 [B], are valid;
    parent: int32 [B, W] of the drafts, None for none. Cuts the runs, enters them and returns them packed, as
    in Walk."""
    batch, width = emitted.shape
    packed = torch.empty((batch, width + 5), dtype=torch.int32, device=emitted.device)
    if batch:
        grid, sizes = _launch(batch, width, ends)
        into = (emitted, emitted) if table is None else (table.tokens, table.seq_lens)
        drafts = emitted if parent is None else parent
        _enter_run[grid](
            emitted, n_accepted, drafts, ends.seq_lens, ends.rows, ends.stop_ids, ends.min_len, ends.max_len,
            emitted if signal is None else signal, packed, *into,
            batch, emitted.stride(0), n_accepted.stride(0), drafts.stride(0), ends.stop_ids.stride(0),
            into[0].stride(0), DRAFTED=parent is not None, SIGNAL=signal is not None,
            COMMIT=table is not None, **sizes,
        )  # fmt: skip
    return packed


def _launch(batch: int, width: int, ends: Ends) -> tuple[tuple[int], dict[str, int]]:
    side, stops = power_of_two(width), ends.stop_ids.shape[1]
    cells = side * power_of_two(stops)
    rows = tile_rows(batch, cells)
    sizes = {"W": width, "W_P": side, "STOPS": stops, "STOPS_P": power_of_two(stops), "ROWS": rows}
    return (triton.cdiv(batch, rows),), sizes | {"num_warps": warps_for(rows * cells)}
