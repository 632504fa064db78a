# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""Where an emitted run ends, its entry into the request table, and what the host is told: parts of kernels.

The rules are those of the torch reference, `speculative.accept`; it does not know why tokens were emitted.
Legend: B requests, W width (nodes), R table rows, S stop ids a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import jit, power_of_two, tile_rows, warps_for

STOP: tl.constexpr = tl.constexpr(1)  # the values of engine.batch.Finish
LENGTH: tl.constexpr = tl.constexpr(2)


@jit
def end_of(
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
def leave_run(
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


def sizes_for(batch: int, width: int, ends: Ends) -> tuple[tuple[int], dict[str, int]]:
    """(grid, constants and warps) of a kernel that calls the parts above."""
    side, stops = power_of_two(width), ends.stop_ids.shape[1]
    cells = side * power_of_two(stops)
    rows = tile_rows(batch, cells)
    sizes = {"W": width, "W_P": side, "STOPS": stops, "STOPS_P": power_of_two(stops), "ROWS": rows}
    return (triton.cdiv(batch, rows),), sizes | {"num_warps": warps_for(rows * cells)}
