"""Forced acceptance: runs of a given mean length whatever was drafted, to measure the cost of an engine.

Emits drafts that the target did not choose, so no output of it means anything. Knows no drafter and no model.
Legend: B requests, W width (nodes), D drafts on the longest path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine.batch import DraftTree, LayerKV
from speculative.accept import Accepted, EndColumns, Ledger, Settled
from speculative.ops import ChainPlaces, Compactor, DraftOps, NodeInputs
from speculative.tree import TreeGeometry, is_child

Coin = Callable[[Tensor, Tensor], Tensor]  # (rows, positions) int64 [B] -> float64 [B] in (0, 1)


class SimulatedOps(DraftOps):
    """Another implementation's operations, except that acceptance follows no target.

    The run of a request is the first-child path of its drafts, floor(mean) or one more tokens long by the
    request's own coin at its position, then the target's token there; shorter only where drafts are missing
    or the answer ends.
    """

    def __init__(self, inner: DraftOps, mean: float, longest_run: int, coin: Coin) -> None:
        """mean: emitted tokens a step, 1..longest_run."""
        assert 1 <= mean <= longest_run, f"a run of {mean} tokens where at most {longest_run} are possible"
        self._inner = inner
        self._coin = coin
        self._least = int(mean) - 1  # drafts
        self._share = mean - int(mean)  # of runs with one more
        self._depth = longest_run - 1

    def geometry(self, tree: DraftTree, needs_mask: bool = True) -> TreeGeometry:
        return self._inner.geometry(tree, needs_mask)

    def accept_and_trim(
        self, tree: DraftTree, target: Tensor, seq_lens: Tensor, rows: Tensor, columns: EndColumns
    ) -> tuple[Accepted, Tensor, Tensor]:
        taken = self._forced(tree, target, self._coin(rows, seq_lens.long() + 1))
        return taken, *self._inner.trim(taken.emitted, taken.n_accepted + 1, seq_lens, rows, columns)

    def accept_ratio(
        self, tree: DraftTree, target_probs: Tensor, accept_coins: Tensor, draw_coins: Tensor
    ) -> Accepted:
        return self._forced(tree, target_probs.argmax(-1).int(), accept_coins[:, 0])

    def trim(
        self, emitted: Tensor, n_emitted: Tensor, seq_lens: Tensor, rows: Tensor, columns: EndColumns
    ) -> tuple[Tensor, Tensor]:
        return self._inner.trim(emitted, n_emitted, seq_lens, rows, columns)

    def opening(self, rows: Tensor, ledger: Ledger) -> tuple[Tensor, Tensor]:
        return self._inner.opening(rows, ledger)

    def node_inputs(
        self,
        tree: DraftTree,
        shape: TreeGeometry,
        start: Tensor,
        rows: Tensor,
        page_table: Tensor,
        page_size: int,
    ) -> NodeInputs:
        return self._inner.node_inputs(tree, shape, start, rows, page_table, page_size)

    def present_inputs(
        self,
        tree: DraftTree,
        shape: TreeGeometry,
        start: Tensor,
        rows: Tensor,
        page_table: Tensor,
        page_size: int,
        max_drafts: Tensor,
    ) -> tuple[DraftTree, NodeInputs]:
        return self._inner.present_inputs(tree, shape, start, rows, page_table, page_size, max_drafts)

    def chain_places(
        self, start: Tensor, rows: Tensor, page_table: Tensor, page_size: int, steps: int
    ) -> ChainPlaces:
        return self._inner.chain_places(start, rows, page_table, page_size, steps)

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
    ) -> Settled:
        taken = self._forced(tree, target, self._coin(rows, start.long() + 1))
        return self._inner.enter(taken, tree, start, rows, columns, ledger)

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

    def _forced(self, tree: DraftTree, target: Tensor, coin: Tensor) -> Accepted:
        """target: int32 [B, W]; coin: float64 [B]."""
        width = target.shape[1]
        path = _first_children(tree, min(self._depth, width - 1))
        wanted = self._least + (coin < self._share).int()
        depth = torch.arange(path.shape[1], device=path.device)
        on_path = (path < width) & (depth <= wanted.unsqueeze(1))
        n_accepted = on_path.sum(1, dtype=torch.int32) - 1
        nodes = torch.where(on_path, path, 0)
        own = target.gather(1, nodes)
        drafts = torch.roll(tree.tokens.gather(1, nodes), -1, 1)  # what follows a node on the path
        emitted = torch.where(depth < n_accepted.unsqueeze(1), drafts, own)
        pad = (0, width - path.shape[1])
        index = torch.nn.functional.pad(torch.where(on_path, path, -1).int(), pad, value=-1)
        return Accepted(index, n_accepted, torch.nn.functional.pad(emitted.int(), pad))


def _first_children(tree: DraftTree, depth: int) -> Tensor:
    """int64 [B, depth + 1]: the root, its first child, that one's, and so on; W past the end."""
    width = tree.parent.shape[1]
    node = torch.arange(width, device=tree.parent.device)
    first = torch.where(is_child(tree.parent), node, width).amin(-1)  # [B, W]
    first = torch.nn.functional.pad(first, (0, 1), value=width)
    here = torch.zeros(len(first), 1, dtype=torch.int64, device=first.device)
    path = [here]
    for _ in range(depth):
        here = first.gather(1, here)
        path.append(here)
    return torch.cat(path, dim=1)
