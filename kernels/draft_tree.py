# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""A dynamic draft tree: scores of a level's children, the choice of who is continued, and of who is kept.

The rules are those of the torch reference, `speculative.eagle3.growth`; knows scores, no model.
Source: Li et al. 2024 (EAGLE-2), sec. 4.
Legend: B requests, K top-k, C candidates, W nodes of the tree, M nodes continued so far, R table rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.batch import ROOT as _ROOT
from kernels.launch import INTERPRETED, dependent, enter, jit, power_of_two, warps_for

ROOT: tl.constexpr = tl.constexpr(_ROOT)
NOWHERE: tl.constexpr = tl.constexpr(1 << 30)  # an index past every candidate
_GPU_BLOCK = 256


@jit(do_not_specialize=["before", "survivors_row", "scores_ptr", "tokens_ptr", "parent_ptr"])
def _next_level(
    tokens_ptr, scores_ptr, parent_ptr, survivors_ptr, new_ptr, logprob_ptr,
    out_tokens_ptr, out_scores_ptr, out_parent_ptr, before, survivors_row,
    K: tl.constexpr, ADDED: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Grid: (requests, blocks of candidates). before: candidates there are, 0 at the first level.
    enter(PDL)
    request = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    old = place < before
    added = (place >= before) & (place < before + ADDED)
    child = place - before
    source = request * before + place
    token = tl.load(tokens_ptr + source, mask=old, other=0)
    score = tl.load(scores_ptr + source, mask=old, other=0.0)
    parent = tl.load(parent_ptr + source, mask=old, other=ROOT)
    deeper = added & (before > 0)
    above = tl.load(survivors_ptr + request * survivors_row + child // K, mask=deeper, other=ROOT)
    reached = tl.load(scores_ptr + request * before + above, mask=deeper, other=0.0)
    logprob = tl.load(logprob_ptr + request * ADDED + child, mask=added, other=0.0)
    logprob = tl.where(logprob == logprob, tl.minimum(logprob, 0.0), float("-inf"))
    token = tl.where(added, tl.load(new_ptr + request * ADDED + child, mask=added, other=0), token)
    target = request * (before + ADDED) + place
    inside = old | added
    tl.store(out_tokens_ptr + target, token, mask=inside)
    tl.store(out_scores_ptr + target, tl.where(added, reached + logprob, score), mask=inside)
    tl.store(out_parent_ptr + target, tl.where(added, above, parent), mask=inside)


@jit
def _largest(scores, place, open_):
    # The first place of the largest of the open scores; one is open.
    best = tl.max(tl.where(open_, scores, float("-inf")), axis=0)
    return tl.min(tl.where(open_ & (scores == best), place, NOWHERE), axis=0)


@jit(do_not_specialize=["candidates", "scratch", "first_scratch", "depth", "rows_ptr", "start_ptr"])
def _front(
    tokens_ptr, scores_ptr, seen_ptr, rows_ptr, start_ptr,
    survivors_ptr, ids_ptr, source_ptr, positions_ptr, slots_ptr, own_slots_ptr, own_seen_ptr,
    candidates, first_scratch, scratch, depth,
    K: tl.constexpr, K_P: tl.constexpr, KK_P: tl.constexpr, SEEN_P: tl.constexpr, FIRST: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    # Grid: (requests,). The last K * K candidates are the children of the level before; FIRST: the K of it.
    enter(PDL)
    request = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, K_P)
    real = lane < K
    begin = candidates - K * K
    child = lane
    if FIRST:
        begin = candidates - K
    else:
        place = tl.arange(0, KK_P)
        open_ = place < K * K
        scores = tl.load(scores_ptr + request * candidates + begin + place, mask=open_, other=0.0)
        for i in range(K):
            best = _largest(scores, place, open_)
            child = tl.where(lane == i, best, child)
            open_ = open_ & (place != best)
    parent = child // K
    survivor = begin + child
    cell = request * K + lane
    tl.store(survivors_ptr + cell, survivor.to(tl.int64), mask=real)
    token = tl.load(tokens_ptr + request * candidates + survivor, mask=real, other=0)
    tl.store(ids_ptr + cell, token, mask=real)
    above = request * K + parent
    if FIRST:
        above = tl.zeros_like(cell) + request
    tl.store(source_ptr + cell, above, mask=real)
    length = tl.load(start_ptr + request).to(tl.int64)
    tl.store(positions_ptr + cell, length + depth + tl.zeros_like(cell), mask=real)
    before = depth * K
    node = tl.arange(0, SEEN_P)
    row = tl.load(rows_ptr + request)
    slot = first_scratch + row * scratch + node
    tl.store(slots_ptr + request * (before + K) + node, slot, mask=node < before + K)
    own_slots = first_scratch + row * scratch + before + lane.to(tl.int64)
    tl.store(own_slots_ptr + cell, own_slots, mask=real)
    inherited = real[:, None] & (node < before)[None, :]
    old = seen_ptr + (request * K + parent)[:, None] * before + node[None, :]
    itself = ((node[None, :] - before) == lane[:, None]).to(tl.uint8)
    seen = tl.where(inherited, tl.load(old, mask=inherited, other=0), itself)
    inside = real[:, None] & (node < before + K)[None, :]
    tl.store(own_seen_ptr + cell[:, None] * (before + K) + node[None, :], seen, mask=inside)


@jit(do_not_specialize=["root_ptr", "candidates"])
def _keep_best(
    tokens_ptr, scores_ptr, parent_ptr, root_ptr, out_tokens_ptr, out_parent_ptr, candidates,
    N: tl.constexpr, N_P: tl.constexpr, C_P: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Grid: (requests,). Kept candidates stand in the order of their indices, behind the root.
    enter(PDL)
    request = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, C_P)
    open_ = place < candidates
    scores = tl.load(scores_ptr + request * candidates + place, mask=open_, other=0.0)
    lane = tl.arange(0, N_P)
    kept = tl.full((N_P,), NOWHERE, tl.int32)
    for i in range(N):
        best = _largest(scores, place, open_)
        kept = tl.where(lane == i, best, kept)
        open_ = open_ & (place != best)
    real = lane < N
    token = tl.load(tokens_ptr + request * candidates + kept, mask=real, other=0)
    above = tl.load(parent_ptr + request * candidates + kept, mask=real, other=ROOT).to(tl.int32)
    node = 1 + tl.sum((kept[None, :] < kept[:, None]).to(tl.int32), axis=1)
    parent = 1 + tl.sum((kept[None, :] < above[:, None]).to(tl.int32), axis=1)
    own = request * (N + 1)
    tl.store(out_tokens_ptr + own, tl.load(root_ptr + request))
    tl.store(out_parent_ptr + own, ROOT)
    tl.store(out_tokens_ptr + own + node, token, mask=real)
    tl.store(out_parent_ptr + own + node, tl.where(above < 0, 0, parent), mask=real)


def next_level(
    tokens: Tensor, scores: Tensor, parent: Tensor, survivors: Tensor, new: Tensor, logprobs: Tensor, *,
    early: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Candidates int32, fp32, int64 [B, C], contiguous, and what is added: K children, new int32 and logprobs
    fp32 [B, S, K], contiguous, of each of the survivors int64 [B, S], last axis contiguous; with C = 0 the
    first level, S = 1. Returns all of them, [B, C + S * K] each."""
    batch, before = tokens.shape
    added = new.shape[1] * new.shape[2]
    total = before + added
    made = (tokens.new_empty(batch, total), scores.new_empty(batch, total), parent.new_empty(batch, total))
    if batch:
        block = power_of_two(total) if INTERPRETED else _GPU_BLOCK
        _next_level[(batch, triton.cdiv(total, block))](
            tokens, scores, parent, survivors, new, logprobs, *made, before, survivors.stride(0),
            K=new.shape[2], ADDED=added, BLOCK=block, num_warps=warps_for(block), **dependent(early),
        )  # fmt: skip
    return made


def front(
    tokens: Tensor, scores: Tensor, seen: Tensor | None, rows: Tensor, start: Tensor, topk: int,
    first_scratch: int, scratch: int, *, early: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Who is continued next: the first level's K, or the best K of the K * K last candidates, int32 and fp32
    [B, C], contiguous. seen: bool [B, K, M] of the level before, contiguous, None at the first.

    rows: int64 [B]; start: int32 [B]. Returns (survivors int64 [B, K] among the candidates; their tokens
    int32 [B, K]; rows int64 [B * K] of the level before that hold their parents, at the first level the
    requests; positions int64 [B * K];
    slots int64 [B, M + K] of all continued ones, and [B * K] of these; seen bool [B, K, M + K]).
    """
    batch, candidates = tokens.shape
    before = 0 if seen is None else seen.shape[2]
    survivors, ids = rows.new_empty(batch, topk), tokens.new_empty(batch, topk)
    source, positions, own_slots = (rows.new_empty(batch * topk) for _ in range(3))
    slots = rows.new_empty(batch, before + topk)
    own = torch.empty((batch, topk, before + topk), dtype=torch.bool, device=tokens.device)
    if batch:
        old = (own if seen is None else seen).view(torch.uint8)
        side, width = power_of_two(topk), power_of_two(before + topk)
        _front[(batch,)](
            tokens, scores, old, rows, start,
            survivors, ids, source, positions, slots, own_slots, own.view(torch.uint8),
            candidates, first_scratch, scratch, before // topk,
            K=topk, K_P=side, KK_P=power_of_two(topk * topk), SEEN_P=width, FIRST=seen is None,
            num_warps=warps_for(side * width), **dependent(early),
        )  # fmt: skip
    return survivors, ids, source, positions, slots, own_slots, own


def keep_best(
    tokens: Tensor, scores: Tensor, parent: Tensor, root: Tensor, count: int, *, early: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(tokens, parent) int32 [B, count + 1] of the tree of root, int32 [B], and the best candidates, of
    equals the earlier: int32, fp32, int64 [B, C], contiguous, no score not a number, C at least count."""
    batch, candidates = tokens.shape
    kept, above = (tokens.new_empty(batch, count + 1) for _ in range(2))
    if batch:
        size = power_of_two(candidates)
        _keep_best[(batch,)](
            tokens, scores, parent, root, kept, above, candidates,
            N=count, N_P=power_of_two(count), C_P=size, num_warps=warps_for(size), **dependent(early),
        )  # fmt: skip
    return kept, above
