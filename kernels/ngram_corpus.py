# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""Binary search of each row's last tokens in a corpus that is sorted by context, and the places around.

One program a request. Knows token arrays, no drafter. Legend: B requests, S neighbours, M tokens of context.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from kernels.launch import dependent, enter, jit, power_of_two


@jit(do_not_specialize=["row_stride", "places"])
def _ngram_corpus(
    table_ptr, rows_ptr, lens_ptr, corpus_ptr, order_ptr, length_ptr, end_ptr, row_stride, places,
    ROUNDS: tl.constexpr, S: tl.constexpr, MIN: tl.constexpr, MAX: tl.constexpr, MAX_P: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    request = tl.program_id(0).to(tl.int64)
    last = tl.load(lens_ptr + request)
    line = table_ptr + tl.load(rows_ptr + request) * row_stride
    back = tl.arange(0, MAX_P)
    used = back < MAX
    want = tl.load(line + last - back, mask=used & (back <= last), other=-2)
    low = request.to(tl.int32) * 0
    high = low + places
    for _ in range(ROUNDS):  # the first place whose context does not sort before the row's
        open_ = low < high
        middle = low + (high - low) // 2
        end = tl.load(order_ptr + middle, mask=open_, other=MAX)
        have = tl.load(corpus_ptr + end - back, mask=used, other=-2)
        first = tl.min(tl.where(have != want, back, MAX_P), 0)
        before = tl.sum(((back == first) & (have < want)).to(tl.int32), 0) > 0
        low = tl.where(open_ & before, middle + 1, low)
        high = tl.where(open_ & (before == 0), middle, high)
    near = tl.arange(0, S)
    at = low - S // 2 + near
    inside = (at >= 0) & (at < places)
    end = tl.load(order_ptr + tl.minimum(tl.maximum(at, 0), places - 1))
    have = tl.load(corpus_ptr + end[:, None] - back[None, :], mask=used[None, :], other=-1)
    run = tl.min(tl.where(have != want[None, :], back[None, :], MAX), 1)
    run = tl.where(inside & (run >= MIN), run, 0)
    tl.store(length_ptr + request * S + near, run)
    tl.store(end_ptr + request * S + near, end.to(tl.int64))


def ngram_corpus(
    table: Tensor, rows: Tensor, lens: Tensor, corpus: Tensor, order: Tensor,
    *, min_match: int, max_match: int, neighbours: int, early: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(length int32 [B, S], end int64 [B, S]): the `neighbours` places (a power of two) around where each
    row's context sorts in, and how many tokens of context they share, 0 below min_match.

    table: int32 [R, C], rows adjoin in memory. rows: int64 [B]. lens: int32 [B], position of each row's last
    known token. corpus: int32 [N]; order: int32 [E], places sorted by context, none below max_match - 1.
    """
    batch = rows.numel()
    length = torch.empty((batch, neighbours), dtype=torch.int32, device=table.device)
    end = torch.empty((batch, neighbours), dtype=torch.int64, device=table.device)
    if batch:
        places = order.numel()
        _ngram_corpus[(batch,)](
            table, rows, lens, corpus, order, length, end, table.stride(0), places,
            ROUNDS=places.bit_length(), S=neighbours, MIN=min_match, MAX=max_match,
            MAX_P=power_of_two(max_match), num_warps=1, **dependent(early),
        )  # fmt: skip
    return length, end
