"""What a step computes on drafts: a contract with two implementations, torch here, Triton kernels beside it.

The torch one is the reference: it delegates to `speculative.tree`, `accept`, `ratio` and `forced`. Knows no
drafter, no model and no scheduler. Nothing is read on the host.
Legend: B requests, W width (nodes), R table rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.batch import ABSENT, DraftTree, LayerKV, kv_slots
from engine.sampling.choose import argmax_tokens
from speculative.accept import Accepted, EndColumns, Ledger, Settled, accept, commit, trim
from speculative.forced import Forced
from speculative.ratio import accept_ratio
from speculative.tree import TreeGeometry, geometry


@dataclass(frozen=True)
class Standing:
    """Where requests stand before a pass: rows int64 [B], start int32 [B] their lengths, page_table int32
    [R, P] by row."""

    rows: Tensor
    start: Tensor
    page_table: Tensor
    page_size: int


@dataclass(frozen=True)
class NodeInputs:
    """The nodes of a verify pass as the target's tokens, int64 [B * W] each: ids, RoPE positions (length +
    depth), KV slots (those of the positions from the length on, in the order of the nodes)."""

    ids: Tensor
    positions: Tensor
    slots: Tensor


@dataclass(frozen=True)
class ChainPlaces:
    """Where the passes of a chain of drafts stand, [steps, B] each, contiguous in B: pass i of a request at
    length n finds n + i tokens (lens int32) and writes its own at position n + i (int64), in the slot of it
    (int64). tokens: int32 [B, steps + 2], the root and room for the drafts."""

    lens: Tensor
    positions: Tensor
    slots: Tensor
    tokens: Tensor


# (slots int64 [B, W] of each request's window, accept_index int32 [B, W]) -> nothing: KV is moved in place
Compactor = Callable[[Tensor, Tensor], None]


class DraftOps(ABC):
    """Nothing changes it; the same arguments give the same values in every implementation."""

    def __init__(self, force: Forced | None = None) -> None:
        """force: runs follow drafts as long as it says, whatever the target chose (speculative.forced); None:
        they follow the target."""
        self._force = force

    @abstractmethod
    def geometry(self, tree: DraftTree, needs_mask: bool = True) -> TreeGeometry:
        """Depth and mask of every node. needs_mask=False promises chains: node i has parent i - 1 or is
        absent."""

    def accept_ratio(
        self, tree: DraftTree, target_probs: Tensor, accept_coins: Tensor, draw_coins: Tensor
    ) -> Accepted:
        """The ratio test of chains of sampled drafts, tree.probs; as speculative.ratio.accept_ratio. The run
        is not cut: `enter` it."""
        if self._force is not None:
            return self._force.drawn(tree, target_probs, accept_coins)
        return self._ratio(tree, target_probs, accept_coins, draw_coins)

    @abstractmethod
    def _ratio(
        self, tree: DraftTree, target_probs: Tensor, accept_coins: Tensor, draw_coins: Tensor
    ) -> Accepted:
        """The same by the target."""

    def opening(self, rows: Tensor, ledger: Ledger) -> tuple[Tensor, Tensor]:
        """(lengths, last known tokens) of `rows` int64 [B] before a pass: int32 [B] each."""
        lens = ledger.seq_lens[rows]
        return lens, ledger.tokens[rows, lens.long()]

    def node_inputs(self, tree: DraftTree, shape: TreeGeometry, at: Standing) -> NodeInputs:
        """The nodes of B trees, whose roots follow what is written."""
        width = tree.tokens.shape[1]
        first = at.start.long().unsqueeze(1)
        places = first + torch.arange(width, device=first.device)
        slots = kv_slots(at.page_table, at.page_size, at.rows.unsqueeze(1), places)
        positions = places if shape.depths is None else first + shape.depths
        return NodeInputs(tree.tokens.reshape(-1).long(), positions.view(-1), slots.view(-1))

    def present_inputs(
        self, tree: DraftTree, shape: TreeGeometry, at: Standing, max_drafts: Tensor
    ) -> tuple[DraftTree, NodeInputs]:
        """`node_inputs`, and the tree without the nodes that lie deeper than max_drafts int32 [R] allows
        their row."""
        nodes = self.node_inputs(tree, shape, at)
        if tree.parent.shape[1] == 1:
            return tree, nodes
        too_deep = shape.depth > max_drafts[at.rows].unsqueeze(1)
        return replace(tree, parent=torch.where(too_deep, ABSENT, tree.parent)), nodes

    def chain_places(self, at: Standing, steps: int, root: Tensor) -> ChainPlaces:
        """root: int32 [B]."""
        lens = at.start + torch.arange(steps, dtype=torch.int32, device=at.start.device).unsqueeze(1)
        positions = lens.long()
        tokens = root.new_empty(len(root), steps + 2)
        tokens[:, 0] = root
        slots = kv_slots(at.page_table, at.page_size, at.rows, positions)
        return ChainPlaces(lens, positions, slots, tokens)

    def path_rows(self, states: Tensor, accept_index: Tensor, count: int) -> Tensor:
        """[B * count, H]: the rows of [B * W, H] that hold the first `count` nodes of each accepted path,
        int32 [B, W]; past its end the root's."""
        batch, width = accept_index.shape
        first = torch.arange(batch, device=accept_index.device).unsqueeze(1) * width
        return states.index_select(0, (first + accept_index[:, :count].clamp_min(0)).view(-1))

    def keep_last(
        self, kept: Tensor, rows: Tensor, hidden: Tensor, residual: Tensor | None, index: Tensor, count: int
    ) -> None:
        """kept[rows[b]] = (hidden + residual)[b * count + index[b]]: kept [R, H]; rows int64 [B]; hidden and
        residual (None: nothing is added) [B * count, H]; index int32 [B]."""
        at = torch.arange(len(index), device=index.device) * count + index
        taken = hidden.index_select(0, at)
        if residual is not None:
            taken = taken + residual.index_select(0, at)
        kept.index_copy_(0, rows, taken)

    def best(self, logits: Tensor) -> Tensor:
        """int32 [N]: the first index of each row's largest value; logits: [N, V] of any precision,
        contiguous."""
        return argmax_tokens(logits).int()

    def settle(
        self,
        tree: DraftTree,
        target: Tensor,
        start: Tensor,
        rows: Tensor,
        columns: EndColumns,
        ledger: Ledger | None,
    ) -> Settled:
        """Walk the tree by the target's own tokens, int32 [B, W], then `enter` the run. ledger None: nothing
        is entered.

        Settled.taken is the run before the cut; its emitted tokens past n_accepted + 1 are in the vocabulary
        or 0, and otherwise meaningless.
        """
        taken = accept(tree, target) if self._force is None else self._force.walk(tree, target, start, rows)
        return self.enter(taken, tree, start, rows, columns, ledger)

    def enter(
        self,
        taken: Accepted,
        tree: DraftTree | None,
        start: Tensor,
        rows: Tensor,
        columns: EndColumns,
        ledger: Ledger | None,
    ) -> Settled:
        """Cut a run that was accepted and write it down, as speculative.accept.trim and commit do. tree None:
        nothing was drafted."""
        ends = trim(taken.emitted, taken.n_accepted + 1, start, rows, columns)
        return commit(taken, ends, tree, start, rows, ledger)

    @abstractmethod
    def compactor(self, layers: Sequence[LayerKV]) -> Compactor:
        """What brings the KV of accepted nodes to the front of their window in all these layers.

        Slot slots[b, j] receives what slots[b, accept_index[b, j]] held before the call; entries of -1 stay.
        Windows of different requests must not overlap (padding rows may: nobody reads them).
        """


class TorchDraftOps(DraftOps):
    """Plain torch, on every device."""

    def geometry(self, tree: DraftTree, needs_mask: bool = True) -> TreeGeometry:
        return geometry(tree, needs_mask)

    def _ratio(
        self, tree: DraftTree, target_probs: Tensor, accept_coins: Tensor, draw_coins: Tensor
    ) -> Accepted:
        return accept_ratio(tree, target_probs, accept_coins, draw_coins)

    def compactor(self, layers: Sequence[LayerKV]) -> Compactor:
        buffers = [side for layer in layers for side in (layer.k, layer.v)]

        def compact(slots: Tensor, accept_index: Tensor) -> None:
            node = torch.arange(slots.shape[1], device=slots.device)
            source = slots.gather(1, torch.where(accept_index >= 0, accept_index.long(), node)).view(-1)
            target = slots.reshape(-1)
            for buffer in buffers:
                buffer.index_copy_(0, target, buffer.index_select(0, source))

        return compact


def draft_ops(kind: str, early: bool = False, force: Forced | None = None) -> DraftOps:
    """The implementation that AttentionBackend.step_kernels names. "triton": build the backend first, it
    settles how Triton runs in this process. early: as ModelOps.early says; force: as DraftOps takes it."""
    if kind == "triton":
        from speculative.triton_ops import TritonDraftOps  # decorates kernels, which fixes how they run

        return TritonDraftOps(early, force)
    assert kind == "torch", f"no draft operations are called {kind}"
    return TorchDraftOps(force)
