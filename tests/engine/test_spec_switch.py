"""The per-request switch (N6): a request that wants no drafts rides plainly in a batch of others that do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.drafters import Scripted, ScriptedTree
from support.engines import TINY, answers, make, run

from engine.batch import DraftTree
from engine.errors import InternalError
from engine.params import SamplingParams
from engine.step_costs import as_document
from speculative.views import DraftView
from speculative.width import StepCosts

PROMPTS = [[65 + i, 2 * i, 7, 9, i] * (1 + i) for i in range(4)]
WITH = SamplingParams(max_tokens=17, ignore_eos=True, temperature=0.8, seed=3)
WITHOUT = replace(WITH, speculative=False)


@pytest.mark.parametrize("loop", ["none", "future"])
@pytest.mark.parametrize("kind", [Scripted, ScriptedTree])
def test_a_request_rides_plainly_among_others(kind: type[Scripted], loop: str) -> None:
    plain = run(PROMPTS, WITH, *TINY, "overlap=none")
    known = {tuple(p): [*p, *ids] for p, (ids, _, _) in zip(PROMPTS, plain, strict=True)}
    drafter = kind(known, 512, drafts=3, script="right")
    with make(*TINY, f"overlap={loop}", "overlap.debug=true", parts={"speculator": drafter}) as llm:
        mixed = llm.generate(PROMPTS, [WITH, WITHOUT, WITH, WITHOUT])
        llm.check()
        both = llm.metrics.snapshot()
        alone = llm.generate(PROMPTS[1:2], WITHOUT)
        after = llm.metrics.snapshot()
    assert answers(mixed) == plain
    assert answers(alone) == plain[1:2]
    # 16 tokens come from decoding: in 4 steps of 4 with right drafts, one by one without
    assert both["accepted_drafts"] == 2 * 12
    assert both["drafted_tokens"] >= both["accepted_drafts"]
    assert after["decode_results"] - both["decode_results"] == 16
    assert after["drafted_tokens"] == both["drafted_tokens"]
    assert after["accepted_drafts"] == both["accepted_drafts"]
    assert {n for n in drafter.accepted if n} == {3}


def test_the_switch_is_a_sampling_option_of_the_command_line() -> None:
    """As the run's default, and as a request's own choice over it."""
    plain = run(PROMPTS[:1], SamplingParams(max_tokens=9), *TINY)
    known = {tuple(PROMPTS[0]): [*PROMPTS[0], *plain[0][0]]}
    drafter = Scripted(known, 512, drafts=3, script="right")
    overrides = ("sampling.speculative=false", "sampling.max_tokens=9")
    with make(*TINY, *overrides, parts={"speculator": drafter}) as llm:
        assert answers(llm.generate(PROMPTS[:1])) == plain
        assert llm.metrics.snapshot()["accepted_drafts"] == 0
        assert answers(llm.generate(PROMPTS[:1], SamplingParams(max_tokens=9))) == plain
        assert llm.metrics.snapshot()["accepted_drafts"] > 0


@pytest.mark.parametrize("loop", ["none", "future"])
@pytest.mark.parametrize("algorithm", [("spec=ngram",), ("spec=eagle3", "spec.load=dummy")])
def test_an_adaptive_width_learns_nothing_of_such_requests(
    algorithm: tuple[str, ...], loop: str, tmp_path: Path
) -> None:
    """Wide steps cost next to nothing here, so the policy drafts for the others at once."""
    costs = StepCosts({(b, w): 1 + w / 1000 for b in (1, 4) for w in (1, 2, 3, 4, 5, 8)}, {1: 0.0})
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(as_document(costs)))
    params = [WITH, WITHOUT] * 2
    plain = run(PROMPTS, params, *TINY, "overlap=none")
    with make(*TINY, *algorithm, f"overlap={loop}", f"step_costs={file}") as llm:
        assert answers(llm.generate(PROMPTS, params)) == plain
        llm.check()
        assert max(llm.metrics.spec_counts().widths) > 1


@pytest.mark.parametrize(
    "algorithm",
    [
        ("spec=ngram",),
        ("spec=ngram", "spec.adaptive=false", "spec.branches=2", "spec.drafts=3"),
        ("spec=eagle3", "spec.load=dummy", "spec.adaptive=false"),
        ("spec=eagle3", "spec.load=dummy", "spec.adaptive=true"),
        (
            "spec=eagle3",
            "spec.load=dummy",
            "spec.adaptive=false",
            "spec.topk=2",
            "spec.num_steps=2",
            "spec.num_draft_tokens=5",
        ),
    ],
)
def test_every_algorithm_leaves_such_requests_alone(algorithm: tuple[str, ...]) -> None:
    params = [WITH, WITHOUT] * 2
    plain = run(PROMPTS, params, *TINY, "overlap=none")
    with make(*TINY, *algorithm, "overlap.debug=true") as llm:
        assert answers(llm.generate(PROMPTS, params)) == plain
        before, drafts = llm.metrics.snapshot(), llm.metrics.spec_counts()
        assert answers(llm.generate(PROMPTS[1:2], WITHOUT)) == plain[1:2]
        llm.check()
        assert set(llm.metrics.spec_counts().since(drafts).widths) == {1}, "nobody wants drafts: plain steps"
        assert llm.metrics.snapshot()["drafted_tokens"] == before["drafted_tokens"]


class Stubborn(Scripted):
    """Drafts at full width, whatever is asked for."""

    def propose(self, view: DraftView) -> DraftTree:
        return super().propose(replace(view, width=self.plan.width))


def test_a_drafter_that_ignores_the_width_is_named() -> None:
    drafter = Stubborn({}, 512, drafts=3, script="wrong")
    words = r"4 nodes a request for a step of width 1.*follow view\.width"
    with pytest.raises(InternalError, match=words), make(*TINY, parts={"speculator": drafter}) as llm:
        llm.generate(PROMPTS[1:2], WITHOUT)
