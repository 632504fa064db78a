"""EAGLE3 engines for tests: a taught draft, often right, and what its KV has to be by a fresh forward."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from backends.base import AttentionContext
from backends.torch_sdpa import TorchSDPA
from engine.batch import ForwardBatch, KVLayout, LayerKV, Mode, SeqLens
from engine.kv_pool import KVPool
from engine.llm import LLM
from engine.params import SamplingParams
from speculative.eagle3.draft import Eagle3Draft, Leaving
from speculative.eagle3.drafter import HIDDEN, Eagle3
from speculative.views import DraftView, Observed, PrefillSeen
from speculative.width import WidthChoice, WidthPolicy
from support.engines import TINY, make, run

PROMPTS = [[65 + i, 2 * i, 7, 9, i] * (1 + 3 * i) for i in range(6)]
CHAIN = ("spec=eagle3", "spec.load=dummy", "spec.adaptive=false")
TREE = (*CHAIN, "spec.topk=3", "spec.num_steps=3", "spec.num_draft_tokens=9")
GREEDY = SamplingParams(max_tokens=20, ignore_eos=True)


def drafter_of(llm: LLM) -> Eagle3:
    found = llm._container.speculator()
    assert isinstance(found, Eagle3)
    return found


def draft_of(llm: LLM) -> Eagle3Draft:
    found = llm._container.draft()
    assert isinstance(found, Eagle3Draft)
    return found


def bigrams(prompts: Sequence[Sequence[int]], params: SamplingParams, *overrides: str) -> dict[int, int]:
    """What follows each token in the undisturbed run; the last occurrence counts."""
    plain = run(prompts, params, *TINY, "overlap=none", *overrides)
    table: dict[int, int] = {}
    for prompt, (ids, _, _) in zip(prompts, plain, strict=True):
        known = [*prompt, *ids]
        table |= dict(itertools.pairwise(known))
    return table


def teach(llm: LLM, table: Mapping[int, int]) -> None:
    """Let the draft propose by the token that it was last given, keeping its arithmetic: a hidden state is
    recognised bit by bit on its way through relay, gathers and levels. CPU only: it reads the host.

    Every fifth token is followed by a wrong draft; in a tree the right one stands second after every third.
    """
    draft = draft_of(llm)
    given: dict[bytes, int] = {}
    run = draft.run

    def remembering(batch: ForwardBatch, *rest: Any) -> Leaving:
        out = run(batch, *rest).total()
        given.update(zip(map(_key, out), batch.input_ids.tolist(), strict=True))
        return Leaving(out, None)

    def top(hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        rows = [_ranked(table, given.get(_key(row), 0), k) for row in hidden]
        logprobs = torch.log_softmax(-torch.arange(k).float() / 2, 0) - 0.1
        return torch.tensor(rows, dtype=torch.int32).view(len(rows), k), logprobs.expand(len(rows), k)

    def best(hidden: Tensor, out: Tensor | None = None) -> Tensor:
        found = top(hidden, 1)[0][:, 0]
        return found if out is None else out.copy_(found)

    def best_after(left: Leaving, out: Tensor) -> Tensor:
        best(left.hidden, out)
        return left.hidden

    vars(draft).update(
        run=remembering,
        top=top,
        best=best,
        top_after=lambda left, k: (*top(left.hidden, k), left.hidden),
        best_after=best_after,
    )


def _ranked(table: Mapping[int, int], token: int, k: int) -> list[int]:
    right = table.get(token, 1)
    ranked = [right, *((right + 11 * (i + 1)) % 512 for i in range(k))]
    if token % 5 == 0:
        ranked = ranked[1:]
    if k > 1 and token % 3 == 0:
        ranked[0], ranked[1] = ranked[1], ranked[0]
    return ranked[:k]


def _key(row: Tensor) -> bytes:
    return row.numpy().tobytes()


class Script(WidthPolicy):
    """Widths by turns, whatever the results; when the list is over it starts again."""

    def __init__(self, choices: Sequence[WidthChoice]) -> None:
        self.widest = max(choice.width for choice in choices)
        self._choices, self._at = list(choices), 0
        self.drafted: list[tuple[int, int]] = []

    def choose(self, records: Sequence[object], declined: int = 0) -> WidthChoice:
        self._at += 1
        return self._choices[(self._at - 1) % len(self._choices)]

    def learn(self, record: object, width: int, drafted: int, accepted: int, signal: int) -> None:
        self.drafted.append((width, drafted))


class Audit:
    """After every prefill chunk and every verify: the draft's KV of all written positions, and the state that
    it keeps, equal those of a fresh forward over the target's true states."""

    def __init__(self, llm: LLM, *, whole: bool = True) -> None:
        """whole=False: some entry may be missing for good, so only steps before a pause are looked at."""
        self.checked = 0
        self._whole, self._paused = whole, False
        self.accepted: list[int] = []
        self._llm = llm
        self._drafter, self._draft = drafter_of(llm), draft_of(llm)
        self._run = Eagle3Draft.run
        observe, prefill = self._drafter.observe, self._drafter.prefill

        def observed(view: DraftView, seen: Observed) -> None:
            observe(view, seen)
            self.accepted += seen.n_accepted.tolist()
            self._check(view, view.seq_lens.device + seen.n_accepted + 1)

        def prefilled(view: DraftView, seen: PrefillSeen) -> None:
            prefill(view, seen)
            self._check(view, view.seq_lens.device + seen.forward.query_start.diff())

        vars(self._drafter).update(observe=observed, prefill=prefilled)

    def _check(self, view: DraftView, reached: Tensor) -> None:
        """reached: int32 [B], where the kept states belong; a run that was cut ends its request."""
        lens = self._llm._container.table().seq_lens
        ring = "eagle3_behind" in view.relay
        self._paused |= ring and view.width == 1
        if ring and (view.width == 1 or (self._paused and not self._whole)):
            return
        for row, kept_at in zip(view.rows.tolist(), reached.tolist(), strict=True):
            length = int(lens[row])
            tokens = view.tokens[row, : length + 1].long()
            kv, hidden = fresh(self._llm, tokens, self._run)
            slots = view.slots(torch.tensor([row]), torch.arange(length))
            mine = self._llm._container.draft_pool().layers[0]
            torch.testing.assert_close(mine.k[slots], kv.k[1 : length + 1], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(mine.v[slots], kv.v[1 : length + 1], rtol=1e-4, atol=1e-4)
            if length == kept_at:
                torch.testing.assert_close(view.relay[HIDDEN][row], hidden[-1], rtol=1e-3, atol=1e-3)
            self.checked += 1


def fresh(llm: LLM, tokens: Tensor, run: Any = Eagle3Draft.run) -> tuple[LayerKV, Tensor]:
    """(the draft's KV at slots 1.., its hidden states) of one unbroken pass: tokens int64 [n + 1]."""
    target, draft = llm._container.model(), draft_of(llm)
    count = len(tokens) - 1
    layers = KVPool(target.kv_layout, count, 1, torch.device("cpu")).layers
    batch, shape = one_pass(tokens[:-1]), target.shape
    backend = _torch_attention(shape.num_heads, shape.num_kv_heads, shape.head_dim, target.kv_layout)
    backend.init_forward_metadata(batch)
    final, aux = target.forward_with_aux(batch, backend, layers)
    states = final if aux is None else aux
    own = KVPool(draft.kv_layout, count, 1, torch.device("cpu")).layers
    batch = one_pass(tokens[1:])
    backend = _torch_attention(draft.num_heads, draft.num_kv_heads, draft.head_dim, draft.kv_layout)
    backend.init_forward_metadata(batch)
    return own[0], run(draft, batch, draft.fuse(states), backend, own).total()


def one_pass(tokens: Tensor) -> ForwardBatch:
    """An EXTEND pass of one request whose position p lies in slot p + 1."""
    count = len(tokens)
    at = torch.arange(count)
    return ForwardBatch(
        mode=Mode.EXTEND,
        rows=torch.zeros(1, dtype=torch.int64),
        input_ids=tokens,
        positions=at,
        slots=at + 1,
        seq_lens=SeqLens(torch.zeros(1, dtype=torch.int32), (0,)),
        query_start=torch.tensor([0, count], dtype=torch.int32),
        query_lens=(count,),
        page_table=(at + 1).int().unsqueeze(0),
    )


def _torch_attention(heads: int, kv_heads: int, dim: int, layout: KVLayout) -> TorchSDPA:
    context = AttentionContext(
        "test",
        heads,
        kv_heads,
        dim,
        dim**-0.5,
        1,
        1,
        1,
        4096,
        torch.device("cpu"),
        getattr(torch, layout.dtype),
    )
    return TorchSDPA(TorchSDPA.Config(), context)


def engine(*overrides: str, parts: Mapping[str, object] | None = None) -> LLM:
    return make(*TINY, "overlap.debug=true", *overrides, parts=parts)
