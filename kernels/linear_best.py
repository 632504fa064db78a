# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""The best outputs of a head: norm, product and choice in two kernels, logits never written.

The product's programs leave the best of their block, a second kernel chooses among those. Scores stay fp32;
of equal ones the lowest index comes first. Knows a matrix and rows of hidden states.
Legend: T tokens, N outputs, K inputs.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from engine.kernel_choices.plans import Plan
from kernels.launch import dependent, enter, jit, power_of_two, warps_for
from kernels.linear import Norm, Product, Sink, launch, start
from kernels.linear_parts import LOWEST

MOST_CELLS = 1 << 14  # of a program of `_pick`: of more, the best of each block take turns


@jit
def _best_cell(scores, index, cell):
    """(score, output, scores without it) of the largest; of equals the first."""
    score, place = tl.max(scores, axis=0, return_indices=True)
    found = tl.sum(tl.where(cell == place, index, 0), axis=0)
    return score, found, tl.where(cell == place, float("-inf"), scores)


@jit
def _best_block(scores, taken, token, part_ptr, index_ptr, BLOCKS: tl.constexpr, KEEP: tl.constexpr):
    """(score, output, scores, taken) of the largest of the blocks' next ones [BLOCKS_P]: a block's parts
    descend, so that the one behind takes its place. taken: how many of each are gone."""
    block = tl.arange(0, scores.shape[0])
    score, place = tl.max(scores, axis=0, return_indices=True)
    gone = tl.sum(tl.where(block == place, taken, 0), axis=0)
    first = token * BLOCKS + place
    found = tl.load(index_ptr + first * KEEP + gone)
    more = gone + 1 < KEEP
    behind = tl.load(part_ptr + first * (KEEP + 1) + gone + 1, mask=more, other=float("-inf"))
    chosen = block == place
    return score, found, tl.where(chosen, behind, scores), tl.where(chosen, taken + 1, taken)


@jit(do_not_specialize=["kept_ptr", "kept_row"])
def _pick(
    part_ptr, index_ptr, ids_ptr, kept_ptr, logprob_ptr, kept_row,
    BLOCKS: tl.constexpr, KEEP: tl.constexpr, CELLS_P: tl.constexpr, BLOCKS_P: tl.constexpr,
    TOP: tl.constexpr, TURNS: tl.constexpr, LOGS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Grid: (tokens,). Parts and index as keep_best left them; blocks ascend: the first of equals is lowest.
    # TURNS: cells are blocks, not their parts. LOGS: whether probabilities are asked for.
    enter(PDL)
    token = tl.program_id(0).to(tl.int64)
    cell = tl.arange(0, CELLS_P)
    if TURNS:
        first = token * BLOCKS + cell
        scores = tl.load(part_ptr + first * (KEEP + 1), mask=cell < BLOCKS, other=float("-inf"))
        index = tl.zeros((CELLS_P,), tl.int32)  # how many of each block are taken
    else:
        real = cell < BLOCKS * KEEP
        at = (token * BLOCKS + cell // KEEP) * (KEEP + 1) + cell % KEEP
        scores = tl.load(part_ptr + at, mask=real, other=float("-inf"))
        index = tl.load(index_ptr + token * BLOCKS * KEEP + cell, mask=real, other=0)

    if LOGS:
        block = tl.arange(0, BLOCKS_P)
        at = (token * BLOCKS + block) * (KEEP + 1)
        largest = tl.load(part_ptr + at, mask=block < BLOCKS, other=float("-inf"))
        sums = tl.load(part_ptr + at + KEEP, mask=block < BLOCKS, other=0.0)
        peak = tl.max(largest, axis=0)
        log_total = peak + tl.log(tl.sum(sums * tl.exp(largest - peak), axis=0))

    for i in tl.static_range(TOP):
        if TURNS:
            score, found, scores, index = _best_block(scores, index, token, part_ptr, index_ptr, BLOCKS, KEEP)
        else:
            score, found, scores = _best_cell(scores, index, cell)
        tl.store(kept_ptr + token * kept_row + i, tl.load(ids_ptr + found))
        if LOGS:
            known = tl.where(score > LOWEST, score - log_total, float("-inf"))
            tl.store(logprob_ptr + token * TOP + i, known)


def best_outputs(
    plan: Plan, x: Tensor, weight: Tensor, ids: Tensor, top: int, norm: Norm | None = None, *,
    early: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(ids int32 [T, top], natural-log probabilities fp32 [T, top]) of the largest outputs of weight [N, K]
    on x [T, K], best first. ids: int32 [N], what each output means. The plan neither splits nor gates.

    A score that is no number comes last and counts as impossible.
    """
    kept = x.new_empty((x.shape[0], top), dtype=torch.int32)
    logprobs = x.new_empty((x.shape[0], top), dtype=torch.float32)
    _choose(Product(plan, x, weight, None, norm, early), ids, kept, logprobs)
    return kept, logprobs


def best_output(
    plan: Plan, x: Tensor, weight: Tensor, ids: Tensor, norm: Norm | None = None, out: Tensor | None = None,
    *, early: bool = False,
) -> Tensor:  # fmt: skip
    """The ids of `best_outputs` for top = 1, int32 [T]: into `out`, of any stride, if there is one."""
    kept = x.new_empty(x.shape[0], dtype=torch.int32) if out is None else out
    _choose(Product(plan, x, weight, None, norm, early), ids, kept.unsqueeze(1), None)
    return kept


def _choose(run: Product, ids: Tensor, kept: Tensor, logprobs: Tensor | None) -> None:
    """Fills kept int32 [T, top], and logprobs fp32 [T, top], contiguous, if they are asked for."""
    x, blocks, top = run.x, run.blocks, kept.shape[1]
    tokens, keep = x.shape[0], min(top, run.plan.block_n)
    parts = x.new_empty((tokens, blocks, keep + 1), dtype=torch.float32)
    index = x.new_empty((tokens, blocks, keep), dtype=torch.int32)
    launch(run, Sink(x, x, parts, index, keep))
    turns, logs = power_of_two(blocks * keep) > MOST_CELLS and keep > 1, logprobs is not None
    cells = power_of_two(blocks if turns else blocks * keep)
    start(
        _pick, (tokens,), parts, index, ids, kept, parts if logprobs is None else logprobs, kept.stride(0),
        BLOCKS=blocks, KEEP=keep, CELLS_P=cells, BLOCKS_P=power_of_two(blocks), TOP=top,
        TURNS=turns, LOGS=logs,
        num_warps=warps_for(cells if logs else cells // 2), **dependent(run.early),
    )  # fmt: skip
