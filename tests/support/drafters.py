"""Scripted drafters: they know what the target will say, or make sure to be wrong. CPU only: they read the
host.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from engine.batch import ABSENT, DraftTree
from speculative.base import NoSpeculation, RelayField, SpecPlan, Speculator
from speculative.views import DraftView, Observed


class Scripted(Speculator):
    """Drafts by script. known: prompt ids -> all ids (prompt and answer) of the undisturbed run.

    script: "right" (the coming tokens), "wrong" (never equal), "random" (each draft right with probability
    1/2), "absent" (some requests without drafts, by turns).
    """

    reads_cpu_seq_lens = False

    def __init__(
        self, known: Mapping[tuple[int, ...], Sequence[int]], vocab: int, *, drafts: int, script: str
    ) -> None:
        self.plan = SpecPlan(width=drafts + 1)
        self._known = known
        self._vocab = vocab
        self._script = script
        self._random = random.Random(0)
        self.accepted: list[int] = []
        self.calls = 0

    def relay_layout(self) -> tuple[RelayField, ...]:
        return (RelayField("seen", (1,), "int32"),)

    def propose(self, view: DraftView) -> DraftTree:
        self.calls += 1
        if view.width == 1:  # nobody in the batch wants drafts
            return NoSpeculation.alone(view)
        rows, lens = view.rows.tolist(), view.seq_lens.device.tolist()
        drawn = [self._row(view.tokens[r, : n + 1].tolist()) for r, n in zip(rows, lens, strict=True)]
        tokens = torch.tensor([t for t, _ in drawn], dtype=torch.int32).view(len(rows), self.plan.width)
        parent = torch.tensor([p for _, p in drawn], dtype=torch.int32).view(len(rows), self.plan.width)
        return DraftTree(tokens, parent)

    def _row(self, prefix: list[int]) -> tuple[list[int], list[int]]:
        chain = list(range(-1, self.plan.width - 1))
        coming = self._coming(prefix)
        if self._script == "absent" and self._random.random() < 0.5:
            return prefix[-1:] + [0] * (self.plan.width - 1), [-1] + [ABSENT] * (self.plan.width - 1)
        return [prefix[-1], *map(self._spoil, coming)], chain

    def _spoil(self, token: int) -> int:
        wrong = self._script == "wrong" or (self._script == "random" and self._random.random() < 0.5)
        return (token + 1) % self._vocab if wrong else token

    def _coming(self, prefix: list[int]) -> list[int]:
        """The next tokens of the undisturbed run; past its end the id 0 (the answer is cut there anyway)."""
        for prompt, ids in self._known.items():
            if tuple(prefix[: len(prompt)]) == prompt and list(ids[: len(prefix)]) == prefix:
                tail = list(ids[len(prefix) : len(prefix) + self.plan.width - 1])
                return tail + [0] * (self.plan.width - 1 - len(tail))
        return [0] * (self.plan.width - 1)

    def observe(self, view: DraftView, seen: Observed) -> None:
        self.accepted += seen.n_accepted.tolist()
        view.relay["seen"][view.rows] += 1


class ScriptedTree(Scripted):
    """The same drafts as one branch of a tree, behind a wrong sibling at every level: accepted nodes are
    scattered.
    """

    def __init__(self, *args: Any, drafts: int, script: str) -> None:
        super().__init__(*args, drafts=drafts, script=script)
        self.levels = drafts
        self.plan = SpecPlan(width=2 * drafts + 1, tree=True)

    def _row(self, prefix: list[int]) -> tuple[list[int], list[int]]:
        tokens, parents, here = [prefix[-1]], [-1], 0
        for token in self._coming(prefix)[: self.levels]:
            right = self._spoil(token)
            tokens += [(right + 7) % self._vocab, right]
            parents += [here, here]
            here = len(tokens) - 1
        return tokens, parents


def as_tensor(values: Sequence[int]) -> Tensor:
    """int32."""
    return torch.tensor(values, dtype=torch.int32)
