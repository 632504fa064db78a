"""The forward passes of the draft model over the target's rows and pages.

Row t of the draft pairs token t + 1 with a hidden state of position t and sits at position t. Knows where
each pass reads and writes, not which tokens are proposed. Nothing is read on the host.
Legend: B requests, W width, T tokens of a pass, K keys of a pass's window, H and Ht hidden sizes of draft and
target, n fused states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from backends.base import AttentionBackend
from engine.batch import ForwardBatch, Mode, SeqLens
from speculative.base import DraftHost
from speculative.eagle3.draft import Eagle3Draft, Leaving
from speculative.ops import Standing, draft_ops
from speculative.tree import chain
from speculative.views import DraftView, PrefillSeen


@dataclass(frozen=True)
class Window:
    """The drafted nodes so far, outside of the pages. slots: int64 [B, K], this pass's W last; own: those,
    int64 [B * W]. seen: bool [B, W, K], which of all each of its tokens sees."""

    slots: Tensor
    own: Tensor
    seen: Tensor


@dataclass(frozen=True)
class Place:
    """Where one pass of a chain stands: lengths before it, positions and slots int64 [B] of its tokens."""

    lens: SeqLens
    positions: Tensor
    slots: Tensor


class DraftPasses:
    """One draft model with its attention slots and its KV."""

    def __init__(self, draft: Eagle3Draft, host: DraftHost) -> None:
        self._draft = draft
        self._kv = host.kv
        self._ops = draft_ops(host.kernels, host.early)
        self._drafting = host.draft
        self._following = host.draft_extend
        attention = self._drafting or self._following
        assert attention is not None, "a draft model runs over no attention"
        self._gather = attention.ops.rows
        draft.use(attention.ops)
        self._last = draft.positions - 1
        self._overreach = host.context > draft.positions

    def lead(self, view: DraftView, steps: int) -> tuple[Tensor, tuple[Place, ...]]:
        """(tokens int32 [B, steps + 2], the root and room for what a chain of so many passes drafts; where
        they stand, all of them at once)."""
        lens = view.seq_lens
        places = self._ops.chain_places(_standing(view), steps, view.root())
        positions = self._reach(places.positions)
        stands = tuple(
            Place(moved(lens, step, places.lens[step]), positions[step], places.slots[step])
            for step in range(steps)
        )
        return places.tokens, stands

    def ahead(self, view: DraftView, place: Place, tokens: Tensor, hidden: Tensor) -> Leaving:
        """One token a request at a place of `lead`: tokens int32 [B] and hidden [B, H] -> [B, H]."""
        batch = self._verify(view, tokens, place.positions, place.slots, place.lens, 1)
        return self._run(batch, hidden, self._drafting)

    def branch(
        self, view: DraftView, positions: Tensor, tokens: Tensor, hidden: Tensor, window: Window
    ) -> Leaving:
        """W nodes a request, at positions int64 [B * W]: tokens int32 [B, W], hidden [B * W, H] -> [B * W,
        H]."""
        width = tokens.shape[1]
        batch = self._verify(view, tokens, self._reach(positions), window.own, view.seq_lens, width)
        batch = replace(batch, tree_mask=window.seen, window_slots=window.slots)
        return self._run(batch, hidden, self._drafting)

    def follow(self, view: DraftView, tokens: Tensor, states: Tensor) -> Leaving:
        """The true entries from seq_len on: tokens int32 [B, W] (the NEXT ones), states [B * W, n * Ht] ->
        [B * W, H]."""
        lens, drafts = view.seq_lens, chain(tokens)
        shape = self._ops.geometry(drafts, needs_mask=False)
        at = self._ops.node_inputs(drafts, shape, _standing(view))
        batch = self._verify(view, at.ids, self._reach(at.positions), at.slots, lens, tokens.shape[1])
        return self._run(batch, self._draft.fuse(states), self._following)

    def rows(self, states: Tensor, index: Tensor) -> Tensor:
        """Rows of [N, H] by an int64 index [T] -> [T, H], a new tensor."""
        return self._gather(states, index)

    def path_rows(self, states: Tensor, accept_index: Tensor, count: int) -> Tensor:
        """[B * W, n * Ht] -> [B * count, n * Ht], see DraftOps.path_rows."""
        return self._ops.path_rows(states, accept_index, count)

    def keep_last(self, kept: Tensor, rows: Tensor, left: Leaving, index: Tensor, count: int) -> None:
        """Of what `follow` left, row index[b] (int32 [B]) of each request's `count` goes to kept[rows[b]]."""
        self._ops.keep_last(kept, rows, left.hidden, left.residual, index, count)

    def prefill(self, view: DraftView, seen: PrefillSeen, states: Tensor) -> Tensor:
        """The target's chunk again: states [T, n * Ht] -> [B, H] of each request's last token."""
        chunk = seen.forward
        tokens = view.tokens[seen.token_rows, chunk.positions + 1].long()
        batch = replace(chunk, input_ids=tokens, positions=self._reach(chunk.positions), logit_rows=None)
        hidden = self._run(batch, self._draft.fuse(states), self._following).total()
        return hidden.index_select(0, chunk.query_start[1:].long() - 1)

    def restore(self, view: DraftView, at: Tensor, slots: Tensor, tokens: Tensor, states: Tensor) -> None:
        """Write the KV of entries that were left out: at and slots int64 [B, W], tokens int32 [B, W], states
        [B * W, n * Ht]. Its attention never runs, so `view.seq_lens` may lie past `at`."""
        positions, slots = self._reach(at.reshape(-1)), slots.reshape(-1)
        batch = self._verify(view, tokens, positions, slots, view.seq_lens, tokens.shape[1])
        assert self._following is not None
        self._following.init_forward_metadata(batch)
        self._draft.store(batch, self._draft.fuse(states), self._following, self._kv)

    def again(self, view: DraftView, slots: Tensor, states: Tensor) -> Tensor:
        """The last entry once more, at seq_len - 1: slots int64 [B], states [B, n * Ht] -> [B, H]."""
        lens = moved(view.seq_lens, -1)
        batch = self._verify(view, view.root(), self._reach(lens.device.long()), slots, lens, 1)
        return self._run(batch, self._draft.fuse(states), self._following).total()

    def _run(self, batch: ForwardBatch, hidden: Tensor, attention: AttentionBackend | None) -> Leaving:
        assert attention is not None, "the plan asked for no attention of this kind"
        attention.init_forward_metadata(batch)
        return self._draft.run(batch, hidden, attention, self._kv)

    def _verify(
        self, view: DraftView, tokens: Tensor, at: Tensor, slots: Tensor, lens: SeqLens, width: int
    ) -> ForwardBatch:
        count = len(lens.bound)
        return ForwardBatch(
            mode=Mode.VERIFY if count else Mode.IDLE,
            rows=view.rows,
            input_ids=tokens.reshape(-1),
            positions=at,
            slots=slots,
            seq_lens=lens,
            query_start=_starts(width, 1 << count.bit_length(), slots.device)[: count + 1],
            query_lens=(width,) * count,
            page_table=view.page_table,
            width=width,
            page_size=view.page_size,
        )

    def _reach(self, positions: Tensor) -> Tensor:
        """Positions that the RoPE tables hold; what lies past them belongs to no draft that is used."""
        return positions.clamp_max(self._last) if self._overreach else positions


def _standing(view: DraftView) -> Standing:
    return Standing(view.rows, view.seq_lens.device, view.page_table, view.page_size)


def moved(lens: SeqLens, by: int, device: Tensor | None = None) -> SeqLens:
    """Lengths `by` tokens further, never below zero; the bounds and the mirror move along. device: the moved
    lengths, where they are known already."""
    if by == 0:
        return lens
    host = None if lens.host is None else _moved(lens.host, by)
    if device is None:
        device = (lens.device + by).clamp_min(0)
    return SeqLens(device, _moved(lens.bound, by), host)


def _moved(lens: Sequence[int], by: int) -> tuple[int, ...]:
    return tuple([max(length + by, 0) for length in lens])


@cache  # constants: a pass that makes them anew spends a kernel on each
def _starts(width: int, count: int, device: torch.device) -> Tensor:
    """int32 [count + 1]: where the tokens of each of `count` requests begin."""
    return torch.arange(0, (count + 1) * width, width, dtype=torch.int32, device=device)
