# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""The ratio test of a chain of sampled drafts and the draw after its last kept one, in one launch.

The rule is that of the torch reference, `speculative.ratio` (Leviathan et al. 2023, Algorithm 1); it knows
probabilities, no models. Legend: B requests, W width (nodes), V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import INTERPRETED, INTERPRETED_TILE, dependent, enter, jit, power_of_two

_GPU_BLOCK = 4096


@jit
def _pick(weights, coin, SIZE: tl.constexpr):
    # weights float64 [SIZE] -> the index that the coin points at, and the coin left for a choice inside of it
    index = tl.arange(0, SIZE)
    edges = tl.cumsum(weights, axis=0)
    goal = coin * tl.sum(weights, axis=0)
    possible = weights > 0.0
    first = tl.min(tl.where(possible & (edges > goal), index, SIZE), axis=0)
    chosen = tl.minimum(first, tl.max(tl.where(possible, index, 0), axis=0))
    high = tl.sum(tl.where(index == chosen, edges, 0.0), axis=0)
    weight = tl.sum(tl.where(index == chosen, weights, 0.0), axis=0)
    rest = (goal - (high - weight)) / tl.where(weight > 0.0, weight, 1.0)
    return chosen, tl.minimum(tl.maximum(rest, 0.0), 1.0)


@jit
def _accept_ratio(
    tokens_ptr, parent_ptr, target_probs_ptr, draft_probs_ptr, coin_ptr, draw_ptr,
    index_ptr, accepted_ptr, emitted_ptr,
    tokens_row, parent_row, p_row, p_node, q_row, q_node, coin_row, draw_row,
    V: tl.constexpr, W: tl.constexpr, W_P: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BLOCKS_P: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    request = tl.program_id(0).to(tl.int64)
    node = tl.arange(0, W_P)
    above = node < W - 1  # nodes that a draft may follow
    draft = tl.load(tokens_ptr + request * tokens_row + node + 1, mask=above, other=0)
    parent = tl.load(parent_ptr + request * parent_row + node + 1, mask=above, other=-2)
    asked = above & (parent == node)
    p_here, q_here = target_probs_ptr + request * p_row, draft_probs_ptr + request * q_row
    of_p = tl.load(p_here + node.to(tl.int64) * p_node + draft, mask=asked, other=0.0).to(tl.float64)
    of_q = tl.load(q_here + node.to(tl.int64) * q_node + draft, mask=asked, other=0.0).to(tl.float64)
    coin = tl.load(coin_ptr + request * coin_row + node, mask=asked, other=1.0)
    kept = asked & (of_q > 0.0) & (coin * of_q < of_p)
    last = tl.min(tl.where(kept, W_P, node), axis=0)  # the last node keeps nothing
    rejected = tl.sum(((node == last) & asked).to(tl.int32), axis=0) > 0

    # Two levels, as the vocabulary is read once: sums of blocks, then one block.
    p_here += last.to(tl.int64) * p_node
    q_here += last.to(tl.int64) * q_node
    block = tl.arange(0, BLOCKS_P)
    left = tl.full((BLOCKS_P,), 0.0, tl.float64)
    whole = tl.full((BLOCKS_P,), 0.0, tl.float64)
    lane = tl.arange(0, BLOCK)
    for at in range(BLOCKS):
        inside = at * BLOCK + lane < V
        p = tl.load(p_here + at * BLOCK + lane, mask=inside, other=0.0).to(tl.float64)
        q = tl.load(q_here + at * BLOCK + lane, mask=inside & rejected, other=0.0).to(tl.float64)
        left = tl.where(block == at, tl.sum(tl.maximum(p - q, 0.0), axis=0), left)
        whole = tl.where(block == at, tl.sum(p, axis=0), whole)
    subtract = rejected & (tl.sum(left, axis=0) > 0.0)
    chosen, rest = _pick(
        tl.where(subtract, left, whole), tl.load(draw_ptr + request * draw_row + last), BLOCKS_P
    )
    place = chosen * BLOCK + lane
    p_left = tl.load(p_here + place, mask=place < V, other=0.0).to(tl.float64)
    q_left = tl.load(q_here + place, mask=(place < V) & subtract, other=0.0).to(tl.float64)
    within, rest = _pick(tl.maximum(p_left - q_left, 0.0), rest, BLOCK)

    drawn = (chosen * BLOCK + within).to(tl.int32)
    emitted = tl.where(node < last, draft, tl.where(node == last, drawn, 0))
    tl.store(index_ptr + request * W + node, tl.where(node <= last, node, -1), mask=node < W)
    tl.store(emitted_ptr + request * W + node, emitted, mask=node < W)
    tl.store(accepted_ptr + request, last)


def accept_ratio(
    tokens: Tensor, parent: Tensor, p: Tensor, q: Tensor, accept_coins: Tensor, draw_coins: Tensor, *,
    early: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """tokens, parent: int32 [B, W], a chain; p: fp32 [B, W, V]; q: fp32 [B, W - 1, V]; coins: float64 [B, W]
    in (0, 1); the last axis of each contiguous. Returns accept_index int32 [B, W] (-1 padded), n_accepted
    int32 [B], emitted int32 [B, W] (0 past the run)."""
    batch, width, vocab = p.shape
    index, emitted = (torch.empty((batch, width), dtype=torch.int32, device=p.device) for _ in range(2))
    accepted = torch.empty(batch, dtype=torch.int32, device=p.device)
    if batch == 0:
        return index, accepted, emitted
    block = min(power_of_two(vocab), INTERPRETED_TILE if INTERPRETED else _GPU_BLOCK)
    blocks = triton.cdiv(vocab, block)
    _accept_ratio[(batch,)](
        tokens, parent, p, q, accept_coins, draw_coins, index, accepted, emitted,
        tokens.stride(0), parent.stride(0), p.stride(0), p.stride(1), q.stride(0), q.stride(1),
        accept_coins.stride(0), draw_coins.stride(0),
        V=vocab, W=width, W_P=power_of_two(width), BLOCK=block, BLOCKS=blocks, BLOCKS_P=power_of_two(blocks),
        num_warps=8, **dependent(early),
    )  # fmt: skip
    return index, accepted, emitted
