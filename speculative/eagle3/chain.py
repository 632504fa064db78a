"""A chain of drafts: each continues the one before, out of the draft's own hidden state.

Knows the passes and how a draft is chosen; nothing of acceptance.
Source: Li et al. 2025 (EAGLE-3), sec. 3.1. Legend: B requests, W width, H hidden size, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from engine.batch import DraftTree
from speculative.eagle3.draft import Eagle3Draft
from speculative.eagle3.passes import DraftPasses
from speculative.sampled import draw_drafts, sampled_chain
from speculative.tree import chain
from speculative.views import DraftView


class Proposal(ABC):
    """Turns what was kept of the last pass into drafts."""

    @abstractmethod
    def __call__(self, view: DraftView, hidden: Tensor) -> DraftTree:
        """hidden: [B, H] of each request's last entry. view.width > 1."""


class Chain(Proposal):
    """The most probable token each time: W - 1 drafts in W - 2 passes."""

    def __init__(self, draft: Eagle3Draft, passes: DraftPasses) -> None:
        self._draft, self._passes = draft, passes

    def __call__(self, view: DraftView, hidden: Tensor) -> DraftTree:
        tokens, places = self._passes.lead(view, view.width - 2)
        drafts = tokens.unbind(1)[1:]
        self._draft.best(hidden, drafts[0])
        for place, last, new in zip(places, drafts, drafts[1:], strict=False):
            hidden = self._draft.best_after(self._passes.ahead(view, place, last, hidden), new)
        return chain(tokens)


class SampledChain(Proposal):
    """Drafts drawn at the requests' temperatures, for the ratio test; greedy batches get a plain chain."""

    def __init__(self, draft: Eagle3Draft, passes: DraftPasses, vocab: int) -> None:
        self._draft, self._passes, self._vocab = draft, passes, vocab
        self._certain = Chain(draft, passes)
        self._ids = draft.weights.target_ids.long()

    def __call__(self, view: DraftView, hidden: Tensor) -> DraftTree:
        if view.draws is None:
            return self._certain(view, hidden)
        drawn = [self._draw(view, 0, hidden)]
        _, places = self._passes.lead(view, view.width - 2)
        for step, place in enumerate(places):
            hidden = self._passes.ahead(view, place, drawn[-1][0], hidden).total()
            drawn.append(self._draw(view, step + 1, hidden))
        return sampled_chain(view.root(), [token for token, _ in drawn], [q for _, q in drawn])

    def _draw(self, view: DraftView, step: int, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(tokens int32 [B], their distribution fp32 [B, V]) of the draft at seq_len + 1 + step."""
        assert view.draws is not None
        coins = view.draws.coins(view.seq_lens.device.long() + 1 + step)
        logits = self._draft.logits(hidden)
        return draw_drafts(logits, view.draws.temperature(), coins, self._ids, self._vocab)
