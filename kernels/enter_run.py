# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""The end of a run that was accepted elsewhere and its entry into the request table: one launch.

The rules are those of the torch reference, `speculative.accept.trim` and `commit`.
Legend: B requests, W width (nodes), R table rows, S stop ids a row.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from kernels.launch import dependent, enter, jit
from kernels.run_ends import Ends, Table, end_of, leave_run, sizes_for


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
    DRAFTED: tl.constexpr, SIGNAL: tl.constexpr, COMMIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    request = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    real = request < batch
    node = tl.arange(0, W_P)[None, :]
    inside = real[:, None] & (node < W)
    emitted = tl.load(emitted_ptr + request[:, None] * emitted_row + node, mask=inside, other=-1)
    last = tl.load(accepted_ptr + request * accepted_row, mask=real, other=0)
    kept, finish = end_of(
        emitted, last, request, real, lens_ptr, rows_ptr, stop_ptr, min_ptr, max_ptr, stop_row,
        W, W_P, STOPS, STOPS_P,
    )  # fmt: skip
    drafted = tl.zeros_like(kept)
    if DRAFTED:
        parent = tl.load(parent_ptr + request[:, None] * parent_row + node, mask=inside, other=-2)
        drafted = tl.sum((parent >= 0).to(tl.int32), axis=1)
    leave_run(
        emitted, kept, finish, last, drafted, request, real, inside, node, lens_ptr, rows_ptr, signal_ptr,
        table_ptr, table_lens_ptr, packed_ptr, table_row, W, SIGNAL, COMMIT,
    )  # fmt: skip


def enter_run(
    emitted: Tensor, n_accepted: Tensor, ends: Ends, parent: Tensor | None = None,
    signal: Tensor | None = None, table: Table | None = None, *, early: bool = False,
) -> Tensor:  # fmt: skip
    """emitted: int32 [B, W], last axis contiguous, of which the first n_accepted + 1, int32 [B], are valid;
    parent: int32 [B, W] of the drafts, None for none. Cuts the runs, enters them and returns them packed, as
    in Walk."""
    batch, width = emitted.shape
    packed = torch.empty((batch, width + 5), dtype=torch.int32, device=emitted.device)
    if batch:
        grid, sizes = sizes_for(batch, width, ends)
        into = (emitted, emitted) if table is None else (table.tokens, table.seq_lens)
        drafts = emitted if parent is None else parent
        _enter_run[grid](
            emitted, n_accepted, drafts, ends.seq_lens, ends.rows, ends.stop_ids, ends.min_len, ends.max_len,
            emitted if signal is None else signal, packed, *into,
            batch, emitted.stride(0), n_accepted.stride(0), drafts.stride(0), ends.stop_ids.stride(0),
            into[0].stride(0), DRAFTED=parent is not None, SIGNAL=signal is not None,
            COMMIT=table is not None, **sizes, **dependent(early),
        )  # fmt: skip
    return packed
