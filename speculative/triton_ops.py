"""What a step computes on drafts, as Triton kernels: one launch an operation.

Imports the kernels, so import it only once the way to run Triton is settled (backends.triton).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby

from torch import Tensor

from engine.batch import DraftTree, LayerKV
from kernels.accept_ratio import accept_ratio
from kernels.accept_tree import Ends, accept_tree, trim_run
from kernels.compact_kv import Buffers, compact_kv
from kernels.tree_geometry import tree_geometry, tree_paths
from speculative.accept import Accepted, EndColumns
from speculative.ops import Compactor, DraftOps
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

    def geometry(self, tree: DraftTree, needs_mask: bool = True) -> TreeGeometry:
        if not needs_mask:  # a chain's shape is known beforehand
            return geometry(tree, needs_mask)
        depth, mask = tree_geometry(tree.parent)
        return WalkedGeometry(tree.tokens, depth, mask, tree.parent)

    def accept_and_trim(
        self, tree: DraftTree, target: Tensor, seq_lens: Tensor, rows: Tensor, columns: EndColumns
    ) -> tuple[Accepted, Tensor, Tensor]:
        walk = accept_tree(tree.tokens, tree.parent, target, _ends(seq_lens, rows, columns))
        return Accepted(walk.accept_index, walk.n_accepted, walk.emitted), walk.n_emitted, walk.finish

    def accept_ratio(
        self, tree: DraftTree, target_probs: Tensor, accept_coins: Tensor, draw_coins: Tensor
    ) -> Accepted:
        assert tree.probs is not None, (
            "the ratio test needs the distributions that the drafts were drawn from"
        )
        index, accepted, emitted = accept_ratio(
            tree.tokens, tree.parent, target_probs, tree.probs, accept_coins, draw_coins
        )
        return Accepted(index, accepted, emitted)

    def trim(
        self, emitted: Tensor, n_emitted: Tensor, seq_lens: Tensor, rows: Tensor, columns: EndColumns
    ) -> tuple[Tensor, Tensor]:
        return trim_run(emitted, n_emitted, _ends(seq_lens, rows, columns))

    def compactor(self, layers: Sequence[LayerKV]) -> Compactor:
        """One launch for all layers of one shape; a KV layout of several groups takes one launch each."""
        groups = groupby(layers, key=lambda layer: (layer.k.shape, layer.k.dtype))
        sides = [[side for layer in group for side in (layer.k, layer.v)] for _, group in groups]
        return partial(_compact, [Buffers.of(group) for group in sides])


def _ends(seq_lens: Tensor, rows: Tensor, columns: EndColumns) -> Ends:
    return Ends(seq_lens, rows, columns.stop_ids, columns.min_len, columns.max_len)


def _compact(groups: Sequence[Buffers], slots: Tensor, accept_index: Tensor) -> None:
    for buffers in groups:
        compact_kv(buffers, slots, accept_index)
