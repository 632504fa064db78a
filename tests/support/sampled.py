"""Drafters that draw their drafts, for the ratio test: scripted, and an EAGLE3 draft with given beliefs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engine.batch import DraftTree, ForwardBatch
from engine.llm import LLM
from speculative.base import NoSpeculation, SpecPlan, Speculator
from speculative.eagle3.draft import Leaving
from speculative.sampled import draw_drafts, sampled_chain
from speculative.tree import chain
from speculative.views import DraftView, Observed
from support.eagle3 import draft_of


class Believer(Speculator):
    """Believes that `beliefs` fp32 [V, V] are the next token's logits after each token.

    sampled: a chain drawn from them; else the best token each time, or the best two in a tree.
    """

    reads_cpu_seq_lens = False

    def __init__(self, beliefs: Tensor, *, drafts: int, sampled: bool = False, tree: bool = False) -> None:
        width = 2 * drafts + 1 if tree else drafts + 1
        self.plan = SpecPlan(width=width, tree=tree, depth=drafts if tree else None, seeded=not sampled)
        self._beliefs = beliefs
        self._drafts = drafts
        self._sampled = sampled
        self.accepted: list[int] = []

    def propose(self, view: DraftView) -> DraftTree:
        self._beliefs = self._beliefs.to(view.rows.device)
        if view.width == 1:  # nobody in the batch wants drafts
            return NoSpeculation.alone(view)
        if self.plan.tree:
            return self._branching(view.root())
        if view.draws is None or not self._sampled:
            return self._certain(view.root())
        here, drawn = view.root(), []
        for step in range(self._drafts):
            coins = view.draws.coins(view.seq_lens.device.long() + 1 + step)
            logits = self._beliefs[here.long()]
            drawn.append(draw_drafts(logits, view.draws.temperature(), coins, None, logits.shape[1]))
            here = drawn[-1][0]
        return sampled_chain(view.root(), [token for token, _ in drawn], [q for _, q in drawn])

    def _certain(self, root: Tensor) -> DraftTree:
        tokens = [root]
        for _ in range(self._drafts):
            tokens.append(self._beliefs.argmax(-1).int()[tokens[-1].long()])
        return chain(torch.stack(tokens, dim=1))

    def _branching(self, root: Tensor) -> DraftTree:
        """The best two after the root, the best two after the first of them, and so on."""
        two = self._beliefs.topk(2).indices.int()
        tokens, parents, here = [root.unsqueeze(1)], [-1], 0
        for _ in range(self._drafts):
            tokens.append(two[tokens[-1][:, 0].long()])
            parents += [here, here]
            here = len(parents) - 2
        nodes = torch.cat(tokens, dim=1)
        return DraftTree(
            nodes, torch.tensor(parents, dtype=torch.int32, device=nodes.device).expand_as(nodes)
        )

    def observe(self, view: DraftView, seen: Observed) -> None:
        self.accepted += seen.n_accepted.tolist()


def convince(llm: LLM, beliefs: Tensor) -> None:
    """Give an EAGLE3 draft these beliefs, fp32 [V, V], about what follows the token that it was last given.

    Its arithmetic runs; a hidden state is recognised bit by bit. CPU only: it reads the host.
    """
    draft = draft_of(llm)
    columns = draft.weights.target_ids.long()
    given: dict[bytes, int] = {}
    run = draft.run

    def remembering(batch: ForwardBatch, *rest: Any) -> Leaving:
        out = run(batch, *rest).total()
        given.update(zip(map(_key, out), batch.input_ids.tolist(), strict=True))
        return Leaving(out, None)

    def logits(hidden: Tensor) -> Tensor:
        return beliefs[[given.get(_key(row), 0) for row in hidden]][:, columns]

    def best(hidden: Tensor, out: Tensor | None = None) -> Tensor:
        found = draft.target_ids(logits(hidden).argmax(1))
        return found if out is None else out.copy_(found)

    def best_after(left: Leaving, out: Tensor) -> Tensor:
        best(left.hidden, out)
        return left.hidden

    def top(hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        scores, index = logits(hidden).log_softmax(-1).topk(k, dim=1)
        return draft.target_ids(index), scores

    vars(draft).update(
        run=remembering,
        logits=logits,
        best=best,
        top=top,
        top_after=lambda left, k: (*top(left.hidden, k), left.hidden),
        best_after=best_after,
    )


def _key(row: Tensor) -> bytes:
    return row.numpy().tobytes()
