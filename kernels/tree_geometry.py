# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""Depth and mask of every node of a draft tree, and the tokens on its path: each one walk up the parents.

Knows parents and tokens, no drafter. Legend: B requests, W width (nodes), D = W - 1 the longest path.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import dependent, enter, jit, power_of_two, tile_rows, warps_for


@jit(do_not_specialize=["batch"])
def _tree_geometry(
    parent_ptr, depth_ptr, mask_ptr, batch, parent_row,
    W: tl.constexpr, W_P: tl.constexpr, ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    request = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    node = tl.arange(0, W_P)
    inside = (request < batch)[:, None] & (node < W)[None, :]
    at = tl.where(inside, node[None, :], -1)  # where each node's walk has come to; negative above the root
    depth = tl.full((ROWS, W_P), -1, tl.int64)
    sees = tl.full((ROWS, W_P, W_P), 0, tl.int32)
    for _ in range(W):
        depth += (at >= 0).to(tl.int64)
        sees = sees | (at[:, :, None] == node[None, None, :]).to(tl.int32)
        at = tl.load(parent_ptr + request[:, None] * parent_row + at, mask=at >= 0, other=-1)
    cell = request[:, None] * W + node[None, :]
    tl.store(depth_ptr + cell, depth, mask=inside)
    square = inside[:, :, None] & (node < W)[None, None, :]
    tl.store(mask_ptr + cell[:, :, None] * W + node[None, None, :], sees.to(tl.uint8), mask=square)


@jit(do_not_specialize=["batch"])
def _tree_paths(
    parent_ptr, tokens_ptr, depth_ptr, paths_ptr, batch, parent_row, tokens_row,
    W: tl.constexpr, W_P: tl.constexpr, ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    enter(PDL)
    request = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    node = tl.arange(0, W_P)
    inside = (request < batch)[:, None] & (node < W)[None, :]
    cell = request[:, None] * W + node[None, :]
    depth = tl.load(depth_ptr + cell, mask=inside, other=0).to(tl.int32)
    at = tl.where(inside, node[None, :], -1)
    path = tl.full((ROWS, W_P, W_P), -1, tl.int32)
    for _ in range(W - 1):
        token = tl.load(tokens_ptr + request[:, None] * tokens_row + at, mask=at >= 0, other=-1)
        path = tl.where(depth[:, :, None] - 1 == node[None, None, :], token[:, :, None], path)
        at = tl.load(parent_ptr + request[:, None] * parent_row + at, mask=at >= 0, other=-1)
        depth -= 1
    square = inside[:, :, None] & (node < W - 1)[None, None, :]
    tl.store(paths_ptr + cell[:, :, None] * (W - 1) + node[None, None, :], path, mask=square)


def tree_geometry(parent: Tensor, *, early: bool = False) -> tuple[Tensor, Tensor]:
    """parent: int32 [B, W], last axis contiguous, negative for the root and for absent nodes. Returns depth
    int64 [B, W] (0 at the root) and mask bool [B, W, W]: node i sees node j, an ancestor or itself."""
    batch, width = parent.shape
    depth = torch.empty((batch, width), dtype=torch.int64, device=parent.device)
    mask = torch.empty((batch, width, width), dtype=torch.bool, device=parent.device)
    if batch == 0:
        return depth, mask
    side, rows = _tile(batch, width)
    _tree_geometry[(triton.cdiv(batch, rows),)](
        parent, depth, mask.view(torch.uint8), batch, parent.stride(0),
        W=width, W_P=side, ROWS=rows, num_warps=warps_for(rows * side * side), **dependent(early),
    )  # fmt: skip
    return depth, mask


def tree_paths(tokens: Tensor, parent: Tensor, depth: Tensor, *, early: bool = False) -> Tensor:
    """int32 [B, W, D]: the drafted tokens from below the root to each node, in order, -1 padded.

    tokens, parent: int32 [B, W], last axis contiguous; depth: of `tree_geometry`.
    """
    batch, width = tokens.shape
    out = torch.empty((batch, width, width - 1), dtype=torch.int32, device=tokens.device)
    if out.numel() == 0:
        return out
    side, rows = _tile(batch, width)
    _tree_paths[(triton.cdiv(batch, rows),)](
        parent, tokens, depth, out, batch, parent.stride(0), tokens.stride(0),
        W=width, W_P=side, ROWS=rows, num_warps=warps_for(rows * side * side), **dependent(early),
    )  # fmt: skip
    return out


def _tile(batch: int, width: int) -> tuple[int, int]:
    """Side of a request's square, and requests a program."""
    side = power_of_two(width)
    return side, tile_rows(batch, side * side)
