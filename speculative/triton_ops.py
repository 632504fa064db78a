"""What a step computes on drafts, as Triton kernels: one launch an operation.

Imports the kernels, so import it only once the way to run Triton is settled (backends.triton).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby

from torch import Tensor

from engine.batch import DraftTree, LayerKV
from kernels.accept_ratio import accept_ratio
from kernels.accept_tree import Force, accept_tree
from kernels.argmax import argmax
from kernels.compact_kv import Buffers, compact_kv
from kernels.enter_run import enter_run
from kernels.keep_last import keep_last, path_rows
from kernels.node_inputs import Limit, chain_places, node_inputs, opening
from kernels.run_ends import Ends, Table
from kernels.tree_geometry import tree_geometry, tree_paths
from speculative.accept import Accepted, EndColumns, Ledger, Settled
from speculative.forced import Forced
from speculative.ops import ChainPlaces, Compactor, DraftOps, NodeInputs, Standing
from speculative.tree import TreeGeometry, geometry


@dataclass(frozen=True)
class WalkedGeometry(TreeGeometry):
    """A geometry that finds the paths by walking the parents. parent: int32 [B, W]."""

    parent: Tensor

    @cached_property
    def ancestors(self) -> Tensor:
        batch, width = self.tokens.shape
        return tree_paths(self.tokens, self.parent, self.depth).view(batch * width, width - 1)


class TritonDraftOps(DraftOps):
    """The torch reference's results, integer for integer."""

    def __init__(self, early: bool = False, force: Forced | None = None) -> None:
        """early: as kernels.launch.dependent takes it."""
        super().__init__(force)
        self._early = early
        self._rule = None if force is None else Force(force.least, force.chance, force.keys, force.salt)

    def geometry(self, tree: DraftTree, needs_mask: bool = True) -> TreeGeometry:
        if not needs_mask:  # a chain's shape is known beforehand
            return geometry(tree, needs_mask)
        depths, mask = tree_geometry(tree.parent, early=self._early)
        return WalkedGeometry(tree.tokens, depths, mask, tree.parent)

    def _ratio(
        self, tree: DraftTree, target_probs: Tensor, accept_coins: Tensor, draw_coins: Tensor
    ) -> Accepted:
        assert tree.probs is not None, (
            "the ratio test needs the distributions that the drafts were drawn from"
        )
        index, accepted, emitted = accept_ratio(
            tree.tokens, tree.parent, target_probs, tree.probs, accept_coins, draw_coins,
            early=self._early,
        )  # fmt: skip
        return Accepted(index, accepted, emitted)

    def opening(self, rows: Tensor, ledger: Ledger) -> tuple[Tensor, Tensor]:
        return opening(rows, ledger.seq_lens, ledger.tokens, early=self._early)

    def node_inputs(self, tree: DraftTree, shape: TreeGeometry, at: Standing) -> NodeInputs:
        ids, positions, slots, _ = node_inputs(
            tree.tokens, shape.depths, at.start, at.rows, at.page_table, at.page_size, early=self._early
        )
        return NodeInputs(ids, positions, slots)

    def present_inputs(
        self, tree: DraftTree, shape: TreeGeometry, at: Standing, max_drafts: Tensor
    ) -> tuple[DraftTree, NodeInputs]:
        if tree.parent.shape[1] == 1:
            return tree, self.node_inputs(tree, shape, at)
        ids, positions, slots, parent = node_inputs(
            tree.tokens, shape.depths, at.start, at.rows, at.page_table, at.page_size,
            Limit(tree.parent, max_drafts), early=self._early,
        )  # fmt: skip
        return replace(tree, parent=parent), NodeInputs(ids, positions, slots)

    def chain_places(self, at: Standing, steps: int, root: Tensor) -> ChainPlaces:
        made = chain_places(at.start, at.rows, at.page_table, at.page_size, steps, root, early=self._early)
        return ChainPlaces(*made)

    def path_rows(self, states: Tensor, accept_index: Tensor, count: int) -> Tensor:
        return path_rows(states, accept_index, count, early=self._early)

    def keep_last(
        self, kept: Tensor, rows: Tensor, hidden: Tensor, residual: Tensor | None, index: Tensor, count: int
    ) -> None:
        keep_last(kept, rows, hidden, residual, index, count, early=self._early)

    def best(self, logits: Tensor) -> Tensor:
        return argmax(logits, early=self._early)

    def settle(
        self,
        tree: DraftTree,
        target: Tensor,
        start: Tensor,
        rows: Tensor,
        columns: EndColumns,
        ledger: Ledger | None,
    ) -> Settled:
        walk = accept_tree(
            tree.tokens, tree.parent, target, _ends(start, rows, columns), tree.signal, _table(ledger),
            self._rule, early=self._early,
        )  # fmt: skip
        taken = Accepted(walk.accept_index, walk.column(2), walk.emitted)
        return Settled(taken, walk.column(0), walk.column(1), walk.packed)

    def enter(
        self,
        taken: Accepted,
        tree: DraftTree | None,
        start: Tensor,
        rows: Tensor,
        columns: EndColumns,
        ledger: Ledger | None,
    ) -> Settled:
        parent, signal = (None, None) if tree is None else (tree.parent, tree.signal)
        ends = _ends(start, rows, columns)
        packed = enter_run(
            taken.emitted, taken.n_accepted, ends, parent, signal, _table(ledger), early=self._early
        )
        return Settled(taken, packed[:, -5], packed[:, -4], packed)

    def compactor(self, layers: Sequence[LayerKV]) -> Compactor:
        """One launch for all layers of one shape; a KV layout of several groups takes one launch each."""
        groups = groupby(layers, key=lambda layer: (layer.k.shape, layer.k.dtype))
        sides = [[side for layer in group for side in (layer.k, layer.v)] for _, group in groups]
        return partial(_compact, [Buffers.of(group) for group in sides], self._early)


def _ends(seq_lens: Tensor, rows: Tensor, columns: EndColumns) -> Ends:
    return Ends(seq_lens, rows, columns.stop_ids, columns.min_len, columns.max_len)


def _table(ledger: Ledger | None) -> Table | None:
    return None if ledger is None else Table(ledger.tokens, ledger.seq_lens)


def _compact(groups: Sequence[Buffers], early: bool, slots: Tensor, accept_index: Tensor) -> None:
    for buffers in groups:
        compact_kv(buffers, slots, accept_index, early=early)
