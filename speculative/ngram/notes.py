"""What is noted of continuations from step to step, in plain torch: the reference of kernels/ngram_notes.py.

Knows what was found and what came of it, not where it was looked for. Legend: B requests, R table rows.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from engine.batch import DraftTree
from speculative.ngram.drafts import Found, tree_of
from speculative.ngram.signal import FIRST, MOST, STREAK, STREAK_SHIFT
from speculative.views import DraftView


class Notes(Protocol):
    """Two figures a table row: the best first draft (FIRST), and how many of them were right of late
    (STREAK)."""

    def drafted(self, view: DraftView, found: Found) -> DraftTree:
        """The tree of view.width nodes, with its signal; the best first draft is noted."""

    def came(self, view: DraftView, emitted: Tensor) -> None:
        """emitted: int32 [B, W]; whether the noted draft was its first token, drafted or only thought of."""


class TorchNotes:
    """Plain torch, on every device."""

    def drafted(self, view: DraftView, found: Found) -> DraftTree:
        view.relay[FIRST][view.rows] = found.tokens[:, 0, 0]
        tree = tree_of(view.root(), found, view.width)
        signal = found.length[:, 0] + (view.relay[STREAK][view.rows] << STREAK_SHIFT)
        return DraftTree(tree.tokens, tree.parent, signal)

    def came(self, view: DraftView, emitted: Tensor) -> None:
        right = view.relay[FIRST][view.rows] == emitted[:, 0]
        streak = (view.relay[STREAK][view.rows] + 1).clamp_max(MOST)
        view.relay[STREAK][view.rows] = streak * right
