# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""The walk along the accepted drafts, or along drafts whatever they are, and the end of the run: one launch.

The rules are those of the torch reference, `speculative.accept` and `speculative.forced`; it knows tokens and
parents, not how either was made. Legend: B requests, W width (nodes), R table rows, S stop ids a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl
from torch import Tensor

from kernels.coins import coin_bits
from kernels.launch import dependent, enter, jit
from kernels.run_ends import Ends, Table, end_of, leave_run, sizes_for


@jit(
    do_not_specialize=[
        "batch", "lens_ptr", "rows_ptr", "signal_ptr", "tokens_row", "parent_row", "target_row"
    ]
)  # fmt: skip
def _accept_tree(
    tokens_ptr, parent_ptr, target_ptr, lens_ptr, rows_ptr, stop_ptr, min_ptr, max_ptr, signal_ptr,
    index_ptr, packed_ptr, table_ptr, table_lens_ptr, key_ptr,
    batch, tokens_row, parent_row, target_row, stop_row, table_row,
    W: tl.constexpr, W_P: tl.constexpr, STOPS: tl.constexpr, STOPS_P: tl.constexpr, ROWS: tl.constexpr,
    SIGNAL: tl.constexpr, COMMIT: tl.constexpr, FORCED: tl.constexpr, LEAST: tl.constexpr,
    CHANCE: tl.constexpr, SALT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # FORCED: the first child is followed, whatever it holds, LEAST times, or once more by the request's coin.
    enter(PDL)
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
    most = tl.full((ROWS,), LEAST, tl.int32)
    if FORCED:
        position = tl.load(lens_ptr + request, mask=real, other=0).to(tl.int64) + 1
        key = tl.load(key_ptr + tl.load(rows_ptr + request, mask=real, other=0), mask=real, other=0)
        most += (coin_bits(key, position, SALT) < CHANCE).to(tl.int32)
    for step in range(W):
        wanted = tl.sum(tl.where(node == here[:, None], target, 0), axis=1)
        now = (node == step) & (here < W)[:, None]
        path = tl.where(now, here[:, None], path)
        follows = (parent == here[:, None]) & inside
        if FORCED:
            here = tl.min(tl.where(follows & (step < most)[:, None], node, W), axis=1)
            draft = tl.sum(tl.where(node == here[:, None], tokens, 0), axis=1)
            wanted = tl.where(here < W, draft, wanted)
        else:
            here = tl.min(tl.where(follows & (tokens == wanted[:, None]), node, W), axis=1)
        emitted = tl.where(now, wanted[:, None], emitted)
    last = tl.sum((path >= 0).to(tl.int32), axis=1) - 1
    kept, finish = end_of(
        emitted, last, request, real, lens_ptr, rows_ptr, stop_ptr, min_ptr, max_ptr, stop_row,
        W, W_P, STOPS, STOPS_P,
    )  # fmt: skip
    tl.store(index_ptr + request[:, None] * W + node, path, mask=inside)
    drafted = tl.sum((parent >= 0).to(tl.int32), axis=1)
    leave_run(
        emitted, kept, finish, last, drafted, request, real, inside, node, lens_ptr, rows_ptr, signal_ptr,
        table_ptr, table_lens_ptr, packed_ptr, table_row, W, SIGNAL, COMMIT,
    )  # fmt: skip


@dataclass(frozen=True)
class Force:
    """A walk that follows no target: `least` drafts, or one more where the request's coin, of 2^52 values, is
    below `chance`. keys: int64 [R]; salt: see kernels.coins."""

    least: int
    chance: int
    keys: Tensor
    salt: int


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
    table: Table | None = None, force: Force | None = None, *, early: bool = False,
) -> Walk:  # fmt: skip
    """tokens, parent, target: int32 [B, W], last axis contiguous; signal: int32 [B]. Follows the first child
    that holds the target's token after a node, from node 0 on, cuts the emitted run, and enters it. force:
    another rule to follow by. early: see kernels.launch.dependent."""
    batch, width = target.shape
    index = torch.empty((batch, width), dtype=torch.int32, device=target.device)
    packed = torch.empty((batch, width + 5), dtype=torch.int32, device=target.device)
    if batch:
        grid, sizes = sizes_for(batch, width, ends)
        into = (index, index) if table is None else (table.tokens, table.seq_lens)
        _accept_tree[grid](
            tokens, parent, target, ends.seq_lens, ends.rows, ends.stop_ids, ends.min_len, ends.max_len,
            index if signal is None else signal, index, packed, *into, index if force is None else force.keys,
            batch, tokens.stride(0), parent.stride(0), target.stride(0), ends.stop_ids.stride(0),
            into[0].stride(0), SIGNAL=signal is not None, COMMIT=table is not None, **_forced(force), **sizes,
            **dependent(early),
        )  # fmt: skip
    return Walk(index, packed)


def _forced(force: Force | None) -> dict[str, int | bool]:
    if force is None:
        return {"FORCED": False, "LEAST": 0, "CHANCE": 0, "SALT": 0}
    return {"FORCED": True, "LEAST": force.least, "CHANCE": force.chance, "SALT": force.salt}
