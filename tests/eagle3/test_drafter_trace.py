"""One request through prefill, drafting, verify and draft-extend, pass by pass, as worked out by hand.

Prompt x0..x9, a chain of three drafts of which the first is right and the second wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.eagle3 import CHAIN, draft_of, drafter_of, engine
from support.engines import TINY, run
from torch import Tensor

from engine.batch import ForwardBatch
from engine.params import SamplingParams
from speculative.eagle3.draft import Leaving
from speculative.views import DraftView, Observed, PrefillSeen

PROMPT = [11, 42, 7, 99, 3, 250, 8, 61, 5, 17]
PARAMS = SamplingParams(max_tokens=5, ignore_eos=True)
STEPS = ("spec.num_steps=3", "spec.num_draft_tokens=4", "overlap=none", "cache.page_size=4")


@dataclass(frozen=True)
class Pass:
    """One forward of the draft: what went in and came out."""

    ids: list[int]
    positions: list[int]
    hidden: Tensor
    out: Tensor


class Trace:
    """Records every forward of the draft, and lets it propose a script of tokens."""

    def __init__(self, llm: Any, script: list[int]) -> None:
        self.passes: list[Pass] = []
        self.aux: list[Tensor] = []
        self.proposed: list[list[int]] = []
        self.emitted: list[list[int]] = []
        self.draft, self._script = draft_of(llm), iter(script)
        self._run = self.draft.run
        vars(self.draft).update(run=self._recorded, best=self._next, best_after=self._next_after)
        drafter = drafter_of(llm)
        self._observe, self._prefill = drafter.observe, drafter.prefill
        vars(drafter).update(observe=self._observed, prefill=self._prefilled)

    def _recorded(self, batch: ForwardBatch, hidden: Tensor, *rest: Any) -> Leaving:
        given = hidden.clone()
        out = self._run(batch, hidden, *rest).total()
        self.passes.append(Pass(batch.input_ids.tolist(), batch.positions.tolist(), given, out.clone()))
        return Leaving(out, None)

    def _next(self, hidden: Tensor, out: Tensor) -> Tensor:
        return out.fill_(next(self._script))

    def _next_after(self, left: Leaving, out: Tensor) -> Tensor:
        self._next(left.hidden, out)
        return left.hidden

    def _observed(self, view: DraftView, seen: Observed) -> None:
        assert seen.aux is not None
        self.aux.append(seen.aux.clone())
        self.proposed.append(seen.tree.tokens[0].tolist())
        self.emitted.append(seen.emitted[0, : int(seen.n_accepted[0]) + 1].tolist())
        self._observe(view, seen)

    def _prefilled(self, view: DraftView, seen: PrefillSeen) -> None:
        assert seen.aux is not None
        self.aux.append(seen.aux.clone())
        self._prefill(view, seen)


@pytest.fixture(scope="module")
def trace() -> tuple[Trace, list[int]]:
    [(ids, _, _)] = run([PROMPT], PARAMS, *TINY, "overlap=none")
    x = [*PROMPT, *ids]
    wrong = (x[12] + 1) % 512
    with engine(*CHAIN, *STEPS) as llm:
        found = Trace(llm, [x[11], wrong, 5, x[13], x[14], 6, 7, 8, 9])
        [output] = llm.generate([PROMPT], PARAMS)
    assert list(output.completions[0].token_ids) == list(ids)
    return found, x


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_prefill_pairs_each_token_with_the_state_before_it(trace: tuple[Trace, list[int]]) -> None:
    found, x = trace
    prefill = found.passes[0]
    assert prefill.ids == x[1:11]
    assert prefill.positions == list(range(10))
    close(prefill.hidden, found.draft.fuse(found.aux[0]))


def test_drafting_feeds_each_draft_with_the_hidden_state_before_it(trace: tuple[Trace, list[int]]) -> None:
    found, x = trace
    prefill, first, second = found.passes[:3]
    wrong = (x[12] + 1) % 512
    assert (first.ids, first.positions) == ([x[11]], [10])
    assert (second.ids, second.positions) == ([wrong], [11])
    close(first.hidden, prefill.out[9:])
    close(second.hidden, first.out)
    assert found.proposed[0] == [x[10], x[11], wrong, 5]


def test_verify_accepts_the_first_draft_alone(trace: tuple[Trace, list[int]]) -> None:
    found, x = trace
    assert found.emitted[0] == [x[11], x[12]]


def test_draft_extend_writes_the_true_states_over_what_was_drafted(trace: tuple[Trace, list[int]]) -> None:
    found, x = trace
    extend = found.passes[3]
    assert extend.ids[:2] == [x[11], x[12]]
    assert extend.positions == [10, 11, 12, 13]
    close(extend.hidden[:2], found.draft.fuse(found.aux[1])[:2])


def test_the_next_chain_goes_on_from_the_last_accepted_row(trace: tuple[Trace, list[int]]) -> None:
    found, x = trace
    extend, first = found.passes[3:5]
    assert (first.ids, first.positions) == ([x[13]], [12])
    close(first.hidden, extend.out[1:2])
    assert found.proposed[1][:3] == [x[12], x[13], x[14]]


def test_one_step_has_no_drafting_forward_at_all() -> None:
    """steps/topk/tokens = 1/1/2: prefill, then a draft-extend of two rows a step, and an empty draft slot."""
    with engine(*CHAIN, "spec.num_steps=1", "spec.num_draft_tokens=2", "overlap=none") as llm:
        found = Trace(llm, [1] * 20)
        assert llm._container.drafts()[0] is None
        llm.generate([PROMPT], PARAMS)
    assert {len(p.ids) for p in found.passes[1:]} == {2}
    assert len(found.passes) == 1 + len(found.proposed)
