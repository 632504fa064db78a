# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""Longest-suffix match in rows of tokens, and the tokens after the match: two launches a continuation.

Every program compares a block of places with the row's last tokens and leaves its best (length, recency); who
reads those takes the largest. Knows rows and lengths, no drafter. Prompt lookup decoding (Saxena 2023).
Legend: B requests, K continuations, D tokens of each, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import INTERPRETED, INTERPRETED_TILE, dependent, enter, jit, power_of_two

_GPU_BLOCK = 512
LONGEST, COUNT, COMMON = 0, 1, 2  # what a launch of _ngram_match looks for


@jit
def _largest(keys_ptr, blocks):
    # The largest of what the blocks left, each at least 0.
    lane = tl.arange(0, 32)
    found = tl.zeros((32,), tl.int64)
    for first in range(0, blocks, 32):
        at = first + lane
        found = tl.maximum(found, tl.load(keys_ptr + at, mask=at < blocks, other=0))
    return tl.max(found, 0)


@jit(do_not_specialize=["row_stride", "vocab", "best_ptr", "common_ptr", "votes_ptr"])
def _ngram_match(
    table_ptr, rows_ptr, lens_ptr, drafted_ptr, best_ptr, common_ptr, votes_ptr, row_stride, vocab,
    FIND: tl.constexpr, BRANCH: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
    MIN: tl.constexpr, MAX: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    request = tl.program_id(0).to(tl.int64)
    line = table_ptr + tl.load(rows_ptr + request) * row_stride
    last = tl.load(lens_ptr + request)
    end = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    alive = end < last  # the end itself is no match
    following = tl.load(line + end + 1, mask=alive, other=-1)
    for branch in tl.static_range(BRANCH):  # better continuations start with these
        alive = alive & (following != tl.load(drafted_ptr + (request * K + branch) * D))
    open_ = alive
    run = tl.zeros((BLOCK,), tl.int32)
    for j in range(MAX):
        want = tl.load(line + last - j, mask=last >= j, other=-2)
        have = tl.load(line + end - j, mask=alive & (end >= j), other=-1)
        alive = alive & (have == want)
        run += alive.to(tl.int32)
    place = (end + 1).to(tl.int64)
    blocks = tl.num_programs(1)
    own = request * blocks + tl.program_id(1)
    if FIND == 0:
        key = tl.where(run >= MIN, (run.to(tl.int64) << 32) | place, 0)
        tl.store(best_ptr + own, tl.max(key, 0))
    else:
        length = (_largest(best_ptr + request * blocks, blocks) >> 32).to(tl.int32)
        among = open_ & (run == length) & (length > 0)
        vote = votes_ptr + request * vocab + following
        if FIND == 1:
            tl.atomic_add(vote, 1, mask=among)
        else:
            count = tl.load(vote, mask=among, other=0).to(tl.int64)
            tl.store(common_ptr + own, tl.max(tl.where(among, (count << 32) | place, 0), 0))


@jit(do_not_specialize=["row_stride", "best_ptr", "place_ptr", "blocks"])
def _ngram_continue(
    table_ptr, rows_ptr, lens_ptr, best_ptr, place_ptr, length_ptr, drafted_ptr, row_stride, blocks,
    BRANCH: tl.constexpr, K: tl.constexpr, D: tl.constexpr, D_P: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    request = tl.program_id(0).to(tl.int64)
    line = table_ptr + tl.load(rows_ptr + request) * row_stride
    last = tl.load(lens_ptr + request)
    length = (_largest(best_ptr + request * blocks, blocks) >> 32).to(tl.int32)
    found = _largest(place_ptr + request * blocks, blocks)
    place = (found & 0xFFFFFFFF).to(tl.int32)  # of the first token after the match
    step = tl.arange(0, D_P)
    period = tl.maximum(last + 1 - place, 1)  # past the last token the continuation goes on in itself
    token = tl.load(line + place + step % period, mask=(length > 0) & (step < D), other=-1)
    cell = request * K + BRANCH
    tl.store(length_ptr + cell, length)
    tl.store(drafted_ptr + cell * D + step, token, mask=step < D)


def ngram_match(
    table: Tensor, rows: Tensor, lens: Tensor, reach: int,
    *, min_match: int, max_match: int, branches: int, depth: int, vocab_size: int | None, early: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The K best continuations of each row's known tokens: (length int32 [B, K], tokens int32 [B, K, D]).

    table: int32 [R, C], rows adjoin in memory. rows: int64 [B]. lens: int32 [B], position of each row's last
    known token. reach: an upper bound of lens, at least 1. vocab_size: given, the most common next token of
    the longest matches is taken; None, the last match's. No match: length 0, tokens -1.
    """
    batch = rows.numel()
    length = torch.empty((batch, branches), dtype=torch.int32, device=table.device)
    drafted = torch.empty((batch, branches, depth), dtype=torch.int32, device=table.device)
    if batch == 0:
        return length, drafted
    # one size on a GPU: a kernel for each power of two would be compiled while requests are served
    block = min(power_of_two(reach), INTERPRETED_TILE) if INTERPRETED else _GPU_BLOCK
    grid = (batch, triton.cdiv(reach, block))
    stages = (LONGEST,) if vocab_size is None else (LONGEST, COUNT, COMMON)
    keys = torch.empty((branches, 2, batch, grid[1]), dtype=torch.int64, device=table.device)
    for branch in range(branches):
        best, common = keys[branch]
        votes = best if vocab_size is None else rows.new_zeros((batch, vocab_size), dtype=torch.int32)
        for stage in stages:
            _ngram_match[grid](
                table, rows, lens, drafted, best, common, votes, table.stride(0), vocab_size or 0,
                FIND=stage, BRANCH=branch, K=branches, D=depth, MIN=min_match, MAX=max_match, BLOCK=block,
                num_warps=4, **dependent(early),
            )  # fmt: skip
        place = best if vocab_size is None else common
        _ngram_continue[(batch,)](
            table, rows, lens, best, place, length, drafted, table.stride(0), grid[1],
            BRANCH=branch, K=branches, D=depth, D_P=power_of_two(depth), num_warps=1, **dependent(early),
        )  # fmt: skip
    return length, drafted
