"""The step is width-generic: drafts that are right, wrong or absent, chains and trees, change nothing but the
steps.
"""

from __future__ import annotations

import pytest
from support.drafters import Scripted, ScriptedTree
from support.engines import FAKE, TINY, answers, make, run

from engine.llm import LLM
from engine.params import SamplingParams

PROMPTS = [[65 + i, 2 * i, 7, 9, i] * (1 + 3 * i) for i in range(6)]
MODELS = {"tiny": (TINY, 512), "fake": (FAKE, 259)}
SAMPLINGS = {
    "greedy": SamplingParams(max_tokens=23, ignore_eos=True),
    "eos": SamplingParams(max_tokens=60),
    "seeded": SamplingParams(max_tokens=23, temperature=0.9, top_p=0.95, seed=4),
    "penalised": SamplingParams(
        max_tokens=23, temperature=0.9, seed=4, repetition_penalty=1.4, frequency_penalty=0.5, min_tokens=10
    ),
}


def _known(model: str, params: SamplingParams) -> dict[tuple[int, ...], list[int]]:
    plain = run(PROMPTS, params, *MODELS[model][0], "overlap=none")
    return {tuple(p): [*p, *ids] for p, (ids, _, _) in zip(PROMPTS, plain, strict=True)}


def _engine(model: str, drafter: Scripted, *overrides: str) -> LLM:
    return make(*MODELS[model][0], "overlap.debug=true", *overrides, parts={"speculator": drafter})


@pytest.mark.parametrize("loop", ["none", "future"])
@pytest.mark.parametrize("script", ["right", "wrong", "random", "absent"])
@pytest.mark.parametrize("kind", [Scripted, ScriptedTree])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("model", MODELS)
def test_drafts_change_nothing(
    model: str, sampling: str, kind: type[Scripted], script: str, loop: str
) -> None:
    params = SAMPLINGS[sampling]
    known = _known(model, params)
    drafter = kind(known, MODELS[model][1], drafts=3, script=script)
    with _engine(model, drafter, f"overlap={loop}") as llm:
        outputs = llm.generate(PROMPTS, params)
        llm.check()
        snapshot = llm.metrics.snapshot()
    plain = run(PROMPTS, params, *MODELS[model][0], "overlap=none")
    assert answers(outputs) == plain
    emitted = sum(o.completion_tokens for o in outputs)
    assert snapshot["emitted_tokens"] == emitted, "E6: counts are those of what users got"
    if script == "right":
        assert max(drafter.accepted) == 3, "a whole chain was accepted somewhere"
        assert snapshot["accepted_drafts"] > 0.5 * snapshot["decode_tokens"] * 3 / 4
    if script == "wrong":
        assert not any(drafter.accepted), "L11: always wrong drafts are never accepted"
        assert snapshot["accepted_drafts"] == 0


@pytest.mark.parametrize("script", ["right", "random"])
@pytest.mark.parametrize(
    "pressure",
    [
        ("cache.tokens=192", "cache.max_context=112", "scheduler.headroom=0", "sampling.max_tokens=9"),
        (
            "cache.page_size=1",
            "cache.tokens=160",
            "cache.max_context=112",
            "scheduler.headroom=0",
            "sampling.max_tokens=9",
        ),
        ("scheduler.max_running=2",),
        ("scheduler.chunk_tokens=5", "cache.page_size=64"),
    ],
)
def test_drafts_under_pressure(pressure: tuple[str, ...], script: str) -> None:
    """K10: retraction counts the width; outputs stay those of an unconstrained plain run."""
    params = SAMPLINGS["greedy"]
    known = _known("fake", params)
    drafter = Scripted(known, 259, drafts=4, script=script)
    with _engine("fake", drafter, *pressure) as llm:
        found = answers(llm.generate(PROMPTS, params))
        llm.check()
    assert found == run(PROMPTS, params, *FAKE, "overlap=none")


@pytest.mark.parametrize("kind", [Scripted, ScriptedTree])
def test_a_stop_id_inside_an_accepted_run(kind: type[Scripted]) -> None:
    """E2, E4: a produced token is declared a stop id; later drafts match, and none of them is shown."""
    free = SamplingParams(max_tokens=12, ignore_eos=True)
    known = _known("fake", free)
    for prompt in PROMPTS:
        ids = known[tuple(prompt)][len(prompt) :]
        stop = ids[4]
        kept = ids[: ids.index(stop) + 1]
        for cap, reason in ((12, "stop"), (len(kept), "stop"), (len(kept) - 1, "length")):
            params = SamplingParams(max_tokens=max(cap, 1), ignore_eos=True, stop_token_ids=(stop,))
            with _engine("fake", kind(known, 259, drafts=5, script="right")) as llm:
                [output] = llm.generate([prompt], params)
                llm.check()
            expected = kept[:cap] if cap else kept[:1]
            if cap:
                assert list(output.completions[0].token_ids) == expected
                assert output.completions[0].finish_reason == reason


def test_logprobs_of_an_accepted_run_equal_those_of_plain_decoding() -> None:
    """P2: every token of an accepted run has its own logprob, ranked, finite and not zero."""
    params = SamplingParams(max_tokens=16, ignore_eos=True, logprobs=3)
    with make(*TINY, "overlap=none") as llm:
        plain = llm.generate(PROMPTS, params)
    known = {tuple(o.prompt_ids): [*o.prompt_ids, *o.completions[0].token_ids] for o in plain}
    for kind in (Scripted, ScriptedTree):
        with _engine("tiny", kind(known, 512, drafts=3, script="random")) as llm:
            found = llm.generate(PROMPTS, params)
        assert answers(found) == answers(plain)
        for mine, theirs in zip(found, plain, strict=True):
            rows, wanted = mine.completions[0].logprobs, theirs.completions[0].logprobs
            assert rows is not None
            assert wanted is not None
            assert len(rows) == len(wanted) == 16
            for a, b in zip(rows, wanted, strict=True):
                assert a.token == b.token
                assert a.logprob == pytest.approx(b.logprob, abs=1e-4)
                assert [t for t, _ in a.top] == [t for t, _ in b.top]
                best = [v for _, v in a.top]
                assert best == sorted(best, reverse=True)
                assert best[0] < 0
