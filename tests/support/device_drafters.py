"""Drafters that are often right and never read the host, so that graphs may hold them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.batch import ABSENT, DraftTree, ForwardBatch
from speculative.base import NoSpeculation, RelayField, SpecPlan, Speculator
from speculative.eagle3.draft import Eagle3Draft, Leaving
from speculative.tree import chain
from speculative.views import DraftView


def follow_table(prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], vocab: int) -> Tensor:
    """int32 [V]: what followed each token in these texts, the last time; elsewhere the next id."""
    table = (torch.arange(vocab, dtype=torch.int32) + 1) % vocab
    for prompt, answer in zip(prompts, answers, strict=True):
        for token, after in pairwise([*prompt, *answer]):
            table[token] = after
    return table


class Follower(Speculator):
    """Drafts what followed each token; after every fifth token a wrong one. In a tree the right one stands
    behind a wrong sibling at every level, so that accepted nodes lie scattered."""

    reads_cpu_seq_lens = False

    def __init__(self, table: Tensor, *, drafts: int, tree: bool = False) -> None:
        """table: as from follow_table, on the engine's device."""
        self._table = table
        width = 2 * drafts + 1 if tree else drafts + 1
        self.plan = SpecPlan(width=width, tree=tree, depth=drafts if tree else None)
        levels = range(0, width - 1, 2)
        parents = [-1, *(p for at in levels for p in (at, at))]
        self._parents = torch.tensor(parents, dtype=torch.int32, device=table.device)

    def relay_layout(self) -> tuple[RelayField, ...]:
        return (RelayField("steps", (), "int32"),)

    def propose(self, view: DraftView) -> DraftTree:
        view.relay["steps"].index_add_(0, view.rows, torch.ones_like(view.rows, dtype=torch.int32))
        if view.width == 1:
            return NoSpeculation.alone(view)
        nodes, here = [view.root()], view.root()
        while len(nodes) < view.width:
            here = likely(self._table, here)
            nodes += [(here + 7) % len(self._table), here] if self.plan.tree else [here]
        tokens = torch.stack(nodes[: view.width], dim=1)
        if not self.plan.tree:
            return chain(tokens)
        parents = self._parents[: view.width].expand_as(tokens)
        return DraftTree(tokens, torch.where(view.rows.unsqueeze(1) % 5 == 4, absent(parents), parents))


def absent(parents: Tensor) -> Tensor:
    """Only the root is left: how a request rides without drafts."""
    return torch.where(parents < 0, parents, ABSENT)


def likely(table: Tensor, token: Tensor) -> Tensor:
    """int32, any shape: the table's answer, spoilt after every fifth token."""
    right = table[token.long()]
    return torch.where(token % 5 == 0, (right + 1) % len(table), right)


def teach_drafts(monkeypatch: pytest.MonkeyPatch, table: Tensor) -> None:
    """Every EAGLE3 draft made from now on answers by the token that it was last given, on the device: its
    first hidden value carries it. All its arithmetic runs, none of it decides."""
    run = Eagle3Draft.run

    def marking(self: Eagle3Draft, batch: ForwardBatch, *rest: Any) -> Leaving:
        out = run(self, batch, *rest).total().clone()
        out[:, 0] = batch.input_ids.to(out.dtype)
        return Leaving(out, None)

    def given(hidden: Tensor) -> Tensor:
        return hidden[:, 0].round().int().clamp(0, len(table) - 1)

    def best(self: Eagle3Draft, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        found = likely(table, given(hidden))
        return found if out is None else out.copy_(found)

    def top(self: Eagle3Draft, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        steps = torch.arange(k, dtype=torch.int32, device=hidden.device)
        tokens = (best(self, hidden).unsqueeze(1) + 11 * steps) % len(table)
        tokens = torch.where(given(hidden).unsqueeze(1) % 3 == 0, tokens.flip(1), tokens)
        return tokens, (-(steps + 0.3) / 2).expand(len(hidden), k)

    def best_after(self: Eagle3Draft, left: Leaving, out: Tensor) -> Tensor:
        best(self, left.hidden, out)
        return left.hidden

    def top_after(self: Eagle3Draft, left: Leaving, k: int) -> tuple[Tensor, Tensor, Tensor]:
        return *top(self, left.hidden, k), left.hidden

    for taught in (best, top, best_after, top_after):
        monkeypatch.setattr(Eagle3Draft, taught.__name__, taught)
    monkeypatch.setattr(Eagle3Draft, "run", marking)
