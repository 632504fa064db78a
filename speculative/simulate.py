"""Forced acceptance: runs of a given mean length whatever was drafted, to measure the cost of an engine.

Emits drafts that the target did not choose, so no output of it means anything. Knows no drafter and no model.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from engine.batch import DraftTree, LayerKV
from speculative.accept import Accepted, EndColumns, Ledger, Settled
from speculative.forced import Forced, first_children
from speculative.ops import ChainPlaces, Compactor, DraftOps, NodeInputs, Standing
from speculative.tree import TreeGeometry


class SimulatedOps(DraftOps):
    """Another implementation's operations, except that acceptance follows no target.

    The run of a request is the first-child path of its drafts, floor(mean) or one more tokens long by the
    request's own coin at its position, then the target's token there; shorter only where drafts are missing
    or the answer ends.
    """

    def __init__(self, inner: DraftOps, mean: float, longest_run: int, keys: Tensor) -> None:
        """mean: emitted tokens a step, 1..longest_run. keys: as in speculative.forced.Forced."""
        assert 1 <= mean <= longest_run, f"a run of {mean} tokens where at most {longest_run} are possible"
        self._inner = inner
        self._force = Forced(mean, keys)

    def geometry(self, tree: DraftTree, needs_mask: bool = True) -> TreeGeometry:
        return self._inner.geometry(tree, needs_mask)

    def accept_and_trim(
        self, tree: DraftTree, target: Tensor, seq_lens: Tensor, rows: Tensor, columns: EndColumns
    ) -> tuple[Accepted, Tensor, Tensor]:
        taken = first_children(tree, target, self._force.drafts(rows, seq_lens))
        return taken, *self._inner.trim(taken.emitted, taken.n_accepted + 1, seq_lens, rows, columns)

    def accept_ratio(
        self, tree: DraftTree, target_probs: Tensor, accept_coins: Tensor, draw_coins: Tensor
    ) -> Accepted:
        drafts = self._force.longer(accept_coins[:, 0])
        return first_children(tree, target_probs.argmax(-1).int(), drafts)

    def trim(
        self, emitted: Tensor, n_emitted: Tensor, seq_lens: Tensor, rows: Tensor, columns: EndColumns
    ) -> tuple[Tensor, Tensor]:
        return self._inner.trim(emitted, n_emitted, seq_lens, rows, columns)

    def opening(self, rows: Tensor, ledger: Ledger) -> tuple[Tensor, Tensor]:
        return self._inner.opening(rows, ledger)

    def node_inputs(self, tree: DraftTree, shape: TreeGeometry, at: Standing) -> NodeInputs:
        return self._inner.node_inputs(tree, shape, at)

    def present_inputs(
        self, tree: DraftTree, shape: TreeGeometry, at: Standing, max_drafts: Tensor
    ) -> tuple[DraftTree, NodeInputs]:
        return self._inner.present_inputs(tree, shape, at, max_drafts)

    def chain_places(self, at: Standing, steps: int, root: Tensor) -> ChainPlaces:
        return self._inner.chain_places(at, steps, root)

    def path_rows(self, states: Tensor, accept_index: Tensor, count: int) -> Tensor:
        return self._inner.path_rows(states, accept_index, count)

    def keep_last(
        self, kept: Tensor, rows: Tensor, hidden: Tensor, residual: Tensor | None, index: Tensor, count: int
    ) -> None:
        self._inner.keep_last(kept, rows, hidden, residual, index, count)

    def best(self, logits: Tensor) -> Tensor:
        return self._inner.best(logits)

    def settle(
        self,
        tree: DraftTree,
        target: Tensor,
        start: Tensor,
        rows: Tensor,
        columns: EndColumns,
        ledger: Ledger | None,
        force: Forced | None = None,
    ) -> Settled:
        return self._inner.settle(tree, target, start, rows, columns, ledger, force or self._force)

    def enter(
        self,
        taken: Accepted,
        tree: DraftTree | None,
        start: Tensor,
        rows: Tensor,
        columns: EndColumns,
        ledger: Ledger | None,
    ) -> Settled:
        return self._inner.enter(taken, tree, start, rows, columns, ledger)

    def compactor(self, layers: Sequence[LayerKV]) -> Compactor:
        return self._inner.compactor(layers)
