"""A toy target model and the verify loop around the real sampler and acceptance: what the tests drive.

The target's next-token logits depend on the last two tokens through a random table, so a wrong condition
shows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from engine.acceptance import Acceptance, Asked, Judged
from engine.batch import DraftTree, Finish
from engine.params import sample_key
from engine.sampling.asked import SamplingClass, SamplingRow
from engine.sampling.columns import SamplingColumns, pack_rows
from engine.sampling.sampler import Sampler
from speculative.ops import TorchDraftOps
from speculative.tree import chain

Drafter = Callable[["Loop"], DraftTree]
Rule = Callable[[SamplingColumns], Callable[[Asked], Judged]]
CPU = torch.device("cpu")
LISTED = 4  # biases and stop ids of a crowd: whole lists of 200,000 requests would fill the memory


def exact(columns: SamplingColumns) -> Acceptance:
    """The engine's own accept stage."""
    return Acceptance(Sampler(), TorchDraftOps(), columns)


def toy_logits(vocab: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    """fp32 [V, V, V]: logits after (token before last, last token)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(vocab, vocab, vocab, generator=generator) * scale


def plain(loop: Loop) -> DraftTree:
    """No drafts: width 1."""
    return chain(loop.last.unsqueeze(1))


class Loop:
    """Requests and the tokens they know; `step` runs one verify pass over all of them.

    at: int64 [B] rows of `columns`. tokens: int32 [B, room]; known, finish: int32 [B].
    """

    def __init__(
        self,
        table: Tensor,
        prompt: Sequence[int],
        rows: Sequence[SamplingRow],
        cls: SamplingClass,
        room: int = 64,
        rule: Rule = exact,
    ) -> None:
        columns = SamplingColumns(len(rows) + 1, table.shape[0], CPU, penalties=True)
        columns.unpack_into(torch.from_numpy(pack_rows(rows)), torch.arange(1, len(rows) + 1))
        self._start(table, prompt, columns, cls, room, rule)

    @classmethod
    def crowd(
        cls,
        table: Tensor,
        prompt: Sequence[int],
        row: SamplingRow,
        sampling: SamplingClass,
        count: int,
        rule: Rule = exact,
    ) -> Loop:
        """`count` requests that differ by their seeds alone; room for a few tokens."""
        self = cls.__new__(cls)
        columns = SamplingColumns(2, table.shape[0], CPU, penalties=True)
        columns.unpack_into(torch.from_numpy(pack_rows([row])), torch.tensor([1]))
        for name, values in vars(columns).items():
            if isinstance(values, Tensor):
                short = values[:, :LISTED] if name in ("bias_ids", "bias_values", "stop_ids") else values
                repeated = short[1:].expand(count, *short.shape[1:])
                setattr(columns, name, torch.cat((short[:1], repeated)))
        columns.key[1:] = _keys(count)
        self._start(table, prompt, columns, sampling, len(prompt) + 8, rule)
        return self

    def _start(
        self,
        table: Tensor,
        prompt: Sequence[int],
        columns: SamplingColumns,
        cls: SamplingClass,
        room: int,
        rule: Rule,
    ) -> None:
        count = len(columns.key) - 1
        self.table, self.prompt, self.columns, self.cls, self.room = table, prompt, columns, cls, room
        self.rule = rule(columns)
        self.accepted: list[Tensor] = []
        self.emitted: list[Tensor] = []
        self.at = torch.arange(1, count + 1)
        self.tokens = torch.zeros(count, room, dtype=torch.int32)
        self.tokens[:, : len(prompt)] = torch.tensor(prompt, dtype=torch.int32)
        self.known = torch.full((count,), len(prompt), dtype=torch.int32)
        self.finish = torch.zeros(count, dtype=torch.int32)
        whole = torch.cat((torch.zeros(1, room, dtype=torch.int32), self.tokens))
        columns.count_known(self.at, whole, self.known, self.known)

    def only(self, chosen: Tensor) -> Loop:
        """The same loop for the requests where `chosen`, bool [B]; the sampling columns stay common."""
        part = copy.copy(self)
        part.accepted, part.emitted = [], []
        for name in ("at", "tokens", "known", "finish"):
            setattr(part, name, getattr(self, name)[chosen])
        return part

    @property
    def last(self) -> Tensor:
        """int32 [B]: the last known token."""
        return self.tokens.gather(1, (self.known - 1).long().unsqueeze(1)).squeeze(1)

    @property
    def before_last(self) -> Tensor:
        """int32 [B]: the known token before it."""
        return self.tokens.gather(1, (self.known - 2).clamp_min(0).long().unsqueeze(1)).squeeze(1)

    def step(self, drafter: Drafter = plain) -> None:
        """One verify pass; finished rows stay as they are."""
        tree = drafter(self)
        batch, width = tree.tokens.shape
        shape = TorchDraftOps().geometry(tree, needs_mask=tree.probs is None)
        logits = self._logits(tree).view(batch * width, -1)
        judged = self.rule(Asked(self.at, self.known - 1, tree, shape, logits, self.cls))
        running = self.finish == Finish.NONE
        count = torch.where(running, judged.count, 0)
        self._commit(judged.taken.emitted, count)
        self.finish = torch.where(running, judged.finish, self.finish)
        self.accepted.append(judged.taken.n_accepted)
        self.emitted.append(count)

    def _logits(self, tree: DraftTree) -> Tensor:
        """[B, W, V]: each node's token and its parent's (the root's is the token before) choose the
        logits."""
        parents = tree.tokens.gather(1, tree.parent.clamp_min(0).long())
        parents = torch.cat((self.before_last.unsqueeze(1), parents[:, 1:]), dim=1)
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


@lru_cache
def _keys(count: int) -> Tensor:
    keys = [sample_key(seed, 0) for seed in range(count)]
    return torch.tensor([key - (1 << 64) if key >> 63 else key for key in keys])
