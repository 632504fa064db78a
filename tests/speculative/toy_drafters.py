"""Drafters for the toy target: blind chains and trees, a script, the likeliest tokens, drawn drafts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from toy_target import Drafter, Loop, toy_logits

from engine.batch import DraftTree
from engine.sampling.draws import draws_of
from speculative.sampled import draw_drafts, sampled_chain
from speculative.tree import chain


def random_chain(width: int, seed: int) -> Drafter:
    """Drafts drawn uniformly, blind to the target's coins."""
    generator = torch.Generator().manual_seed(seed)

    def draft(loop: Loop) -> DraftTree:
        shape = (len(loop.at), width - 1)
        guess = torch.randint(0, loop.table.shape[0], shape, generator=generator, dtype=torch.int32)
        return chain(torch.cat((loop.last.unsqueeze(1), guess), dim=1))

    return draft


def constant_chain(width: int, token: int) -> Drafter:
    """Always the same drafts: as far from uniform as a drafter can be."""

    def draft(loop: Loop) -> DraftTree:
        drafts = torch.full((len(loop.at), width - 1), token, dtype=torch.int32)
        return chain(torch.cat((loop.last.unsqueeze(1), drafts), dim=1))

    return draft


def random_tree(parents: Sequence[int], seed: int) -> Drafter:
    """A tree of fixed shape with uniform tokens, duplicates among siblings included; -2 marks absent
    nodes."""
    generator = torch.Generator().manual_seed(seed)

    def draft(loop: Loop) -> DraftTree:
        shape = (len(loop.at), len(parents))
        tokens = torch.randint(0, loop.table.shape[0], shape, generator=generator, dtype=torch.int32)
        tokens[:, 0] = loop.last
        return DraftTree(tokens, torch.tensor(parents, dtype=torch.int32).expand(shape))

    return draft


def scripted_chain(width: int, script: Sequence[Sequence[int]]) -> Drafter:
    """Drafts what `script` says each row's output will be, from where the row stands."""

    def draft(loop: Loop) -> DraftTree:
        start = len(loop.prompt)
        guess = []
        for plan, known in zip(script, loop.known.tolist(), strict=True):
            ahead = list(plan[known - start : known - start + width - 1])
            guess.append(ahead + [0] * (width - 1 - len(ahead)))
        drafts = torch.tensor(guess, dtype=torch.int32).view(len(guess), width - 1)
        return chain(torch.cat((loop.last.unsqueeze(1), drafts), dim=1))

    return draft


def near(table: Tensor, seed: int = 1) -> Tensor:
    """The target's logits, weakened and disturbed: what a decent drafter would believe."""
    return 0.7 * table + toy_logits(table.shape[0], seed, scale=0.7)


def likely_chain(width: int) -> Drafter:
    """The drafter's best token each time."""

    def draft(loop: Loop) -> DraftTree:
        best = near(loop.table).argmax(-1).int()
        tokens = [loop.before_last, loop.last]
        for _ in range(width - 1):
            tokens.append(best[tokens[-2].long(), tokens[-1].long()])
        return chain(torch.stack(tokens[1:], dim=1))

    return draft


def likely_tree() -> Drafter:
    """The drafter's two best tokens, and the two best after the first of them."""

    def draft(loop: Loop) -> DraftTree:
        two = near(loop.table).topk(2).indices.int()
        first = two[loop.before_last.long(), loop.last.long()]
        second = two[loop.last.long(), first[:, 0].long()]
        tokens = torch.cat((loop.last.unsqueeze(1), first, second), dim=1)
        return DraftTree(tokens, torch.tensor([-1, 0, 0, 1, 1], dtype=torch.int32).expand_as(tokens))

    return draft


def sampled_drafts(width: int) -> Drafter:
    """A chain drawn, with the engine's own coins, from what the drafter believes."""

    def draft(loop: Loop) -> DraftTree:
        table, draws = near(loop.table), draws_of(loop.columns, loop.at)
        before, here, drawn = loop.before_last, loop.last, []
        for step in range(width - 1):
            logits, coins = table[before.long(), here.long()], draws.coins(loop.known.long() + step)
            drawn.append(draw_drafts(logits, draws.temperature(), coins, None, table.shape[0]))
            before, here = here, drawn[-1][0]
        return sampled_chain(loop.last, [token for token, _ in drawn], [q for _, q in drawn])

    return draft
