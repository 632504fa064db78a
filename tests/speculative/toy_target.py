"""A toy target model and the verify loop around the real sampler and acceptance: what the tests drive.

The target's next-token logits depend on the last two tokens through a random table, so a wrong condition
shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.batch import DraftTree, Finish, SamplingClass, SamplingRow
from engine.sampling.columns import SamplingColumns, pack_rows
from engine.sampling.sampler import Sampler
from speculative.accept import accept, trim
from speculative.tree import chain, geometry

Drafter = Callable[["Loop"], DraftTree]


def toy_logits(vocab: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    """fp32 [V, V, V]: logits after (token before last, last token)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(vocab, vocab, vocab, generator=generator) * scale


def plain(loop: Loop) -> DraftTree:
    """No drafts: width 1."""
    return chain(loop.last.unsqueeze(1))


@dataclass
class Loop:
    """Rows of requests and the tokens they know; `step` runs one verify pass over all of them."""

    table: Tensor  # [V, V, V]
    prompt: Sequence[int]
    rows: Sequence[SamplingRow]
    cls: SamplingClass
    room: int = 64
    accepted: list[Tensor] = field(default_factory=list)
    emitted: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = len(self.rows)
        self.columns = SamplingColumns(count + 1, self.table.shape[0], torch.device("cpu"), penalties=True)
        self.at = torch.arange(1, count + 1)
        self.columns.unpack_into(torch.from_numpy(pack_rows(self.rows)), self.at)
        self.tokens = torch.zeros(count, self.room, dtype=torch.int32)
        self.tokens[:, : len(self.prompt)] = torch.tensor(self.prompt, dtype=torch.int32)
        self.known = torch.full((count,), len(self.prompt), dtype=torch.int32)
        self.finish = torch.zeros(count, dtype=torch.int32)
        whole = torch.cat((torch.zeros(1, self.room, dtype=torch.int32), self.tokens))
        self.columns.count_known(self.at, whole, self.known, self.known)

    @property
    def last(self) -> Tensor:
        """int32 [B]: the last known token."""
        return self.tokens.gather(1, (self.known - 1).long().unsqueeze(1)).squeeze(1)

    def step(self, drafter: Drafter = plain) -> None:
        """One verify pass; finished rows stay as they are."""
        tree = drafter(self)
        batch, width = tree.tokens.shape
        shape = geometry(tree, True)
        positions = (self.known.long().unsqueeze(1) + shape.depth).view(-1)
        sampled = Sampler()(
            self._logits(tree).view(batch * width, -1),
            self.at.repeat_interleave(width),
            positions,
            self.columns,
            self.cls,
            shape.ancestors if width > 1 else None,
        )
        taken = accept(tree, sampled.tokens.view(batch, width))
        count, finish = trim(taken.emitted, taken.n_accepted + 1, self.known - 1, self.at, self.columns)
        running = self.finish == Finish.NONE
        self._commit(taken.emitted, torch.where(running, count, 0))
        self.finish = torch.where(running, finish, self.finish)
        self.accepted.append(taken.n_accepted)
        self.emitted.append(torch.where(running, count, 0))

    def _logits(self, tree: DraftTree) -> Tensor:
        """[B, W, V]: each node's token and its parent's (the root's is the token before) choose the
        logits."""
        before = self.tokens.gather(1, (self.known - 2).clamp_min(0).long().unsqueeze(1))
        parents = tree.tokens.gather(1, tree.parent.clamp_min(0).long())
        parents = torch.cat((before, parents[:, 1:]), dim=1)
        return self.table[parents.long(), tree.tokens.long()]

    def _commit(self, emitted: Tensor, count: Tensor) -> None:
        self.columns.count_outputs(self.at, emitted, count)
        step = torch.arange(emitted.shape[1])
        place = (self.known.unsqueeze(1) + step).clamp_max(self.room - 1).long()
        old = self.tokens.gather(1, place)
        self.tokens.scatter_(1, place, torch.where(step < count.unsqueeze(1), emitted, old))
        self.known = self.known + count

    def run(self, drafter: Drafter = plain, steps: int = 200) -> list[list[int]]:
        """Steps until every row has finished; returns each row's output tokens."""
        for _ in range(steps):
            if bool((self.finish != Finish.NONE).all()):
                return self.outputs()
            self.step(drafter)
        raise AssertionError("some rows never finished")

    def outputs(self) -> list[list[int]]:
        """The tokens after the prompt, a row each."""
        start = len(self.prompt)
        return [r[start:n] for r, n in zip(self.tokens.tolist(), self.known.tolist(), strict=True)]


def random_chain(width: int, seed: int) -> Drafter:
    """Drafts drawn uniformly, blind to the target's coins."""
    generator = torch.Generator().manual_seed(seed)

    def draft(loop: Loop) -> DraftTree:
        shape = (len(loop.rows), width - 1)
        guess = torch.randint(0, loop.table.shape[0], shape, generator=generator, dtype=torch.int32)
        return chain(torch.cat((loop.last.unsqueeze(1), guess), dim=1))

    return draft


def constant_chain(width: int, token: int) -> Drafter:
    """Always the same drafts: as far from uniform as a drafter can be."""

    def draft(loop: Loop) -> DraftTree:
        drafts = torch.full((len(loop.rows), width - 1), token, dtype=torch.int32)
        return chain(torch.cat((loop.last.unsqueeze(1), drafts), dim=1))

    return draft


def random_tree(parents: Sequence[int], seed: int) -> Drafter:
    """A tree of fixed shape with uniform tokens, duplicates among siblings included; -2 marks absent
    nodes."""
    generator = torch.Generator().manual_seed(seed)

    def draft(loop: Loop) -> DraftTree:
        shape = (len(loop.rows), len(parents))
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
