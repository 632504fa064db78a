"""`spec=ngram` changes nothing but the number of steps: greedy and seeded, chain and tree, in every loop."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.engines import FAKE, TINY, answers, make, run

from engine.params import SamplingParams

COSTS = Path(__file__).parent / "step_costs.json"  # so that no test depends on how fast a machine is
CHAIN = ("spec=ngram", "spec.adaptive=false", "spec.drafts=4", "spec.min_match=1")
TREE = (*CHAIN, "spec.branches=3")
KINDS = {
    "chain": CHAIN,
    "tree": TREE,
    "adaptive": ("spec=ngram", f"step_costs={COSTS}"),
    "frequent": (*CHAIN, "spec.continuation=frequent"),
}
GREEDY = SamplingParams(max_tokens=30, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=30, ignore_eos=True, temperature=0.8, top_p=0.95, seed=3)
PENALISED = SamplingParams(
    max_tokens=30, temperature=0.7, seed=5, repetition_penalty=1.3, frequency_penalty=0.4, min_tokens=12
)
SAMPLINGS = {"greedy": GREEDY, "seeded": SEEDED, "penalised": PENALISED}


def prompts(count: int, vocab: int = 250) -> list[list[int]]:
    """Some repeat themselves, some do not."""
    draw = random.Random(count)
    made = []
    for i in range(count):
        part = [draw.randrange(3, vocab) for _ in range(5 + 3 * (i % 4))]
        made.append(part * (1 + i % 3))
    return made


@pytest.mark.parametrize("loop", ["none", "future"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", ["tiny", "fake"])
def test_equals_plain_decoding(model, kind, sampling, loop):
    base = TINY if model == "tiny" else FAKE
    asked, params = prompts(5), SAMPLINGS[sampling]
    plain = run(asked, params, *base)
    with make(*base, *KINDS[kind], f"overlap={loop}", "overlap.debug=true") as llm:
        found = llm.generate(asked, params)
        llm.check()
        counts = llm.metrics.snapshot()
    assert answers(found) == plain
    assert counts["emitted_tokens"] == sum(o.completion_tokens for o in found)
    if kind != "adaptive" and model == "tiny":
        assert counts["drafted_tokens"] > 0


@pytest.mark.parametrize("kind", ["chain", "tree"])
@pytest.mark.parametrize("batch", [1, 5, 16])
def test_every_batch_size(batch, kind):
    """L10: requests with and without a match, and padding, share steps; each equals its solo run."""
    asked = prompts(batch)
    found = run(asked, GREEDY, *TINY, *KINDS[kind])
    assert found == run(asked, GREEDY, *TINY)
    for i in (0, batch // 2, batch - 1):
        assert found[i : i + 1] == run(asked[i : i + 1], GREEDY, *TINY), "alone"


@pytest.mark.parametrize("kind", ["chain", "tree", "adaptive"])
@pytest.mark.parametrize(
    "setting",
    [
        ("scheduler.chunk_tokens=5", "cache.page_size=1"),
        ("scheduler.chunk_tokens=7", "cache.page_size=16", "cache=none"),
        ("cache.page_size=64", "scheduler.max_running=2"),
    ],
)
def test_pages_chunks_and_cache(setting, kind):
    asked = prompts(6)
    asked += asked[:2]  # the cache has them by then
    assert run(asked, SEEDED, *FAKE, *KINDS[kind], *setting) == run(asked, SEEDED, *FAKE)


@pytest.mark.parametrize("kind", ["chain", "tree", "adaptive"])
def test_retraction(kind):
    asked = prompts(8)
    tight = ("cache.tokens=192", "cache.max_context=112", "scheduler.headroom=0", "sampling.max_tokens=9")
    with make(*TINY, *KINDS[kind], *tight) as llm:
        found = answers(llm.generate(asked, GREEDY))
        llm.check()
        assert llm.metrics.snapshot()["retractions"] > 0
    assert found == run(asked, GREEDY, *TINY)


@pytest.mark.parametrize("kind", ["chain", "tree", "adaptive"])
def test_a_loop_is_accepted_at_full_length(kind):
    """A bias makes the model repeat one token: all but the first drafts are right."""
    params = SamplingParams(max_tokens=80, ignore_eos=True, logit_bias={65: 100.0})
    with make(*TINY, *KINDS[kind]) as llm:
        [output] = llm.generate([prompts(1)[0]], params)
        counts = llm.metrics.snapshot()
    assert set(output.completions[0].token_ids) == {65}
    steps = counts["decode_tokens"] - counts["accepted_drafts"]
    assert counts["decode_tokens"] / steps > 3.5, "accept length"


def test_wrong_drafts_only():
    """L11: no draft of the hash model's text is right; every step emits its one token."""
    asked = [p * 3 for p in prompts(4)]
    with make(*FAKE, *CHAIN) as llm:
        found = answers(llm.generate(asked, GREEDY))
        counts = llm.metrics.snapshot()
        llm.check()
    assert found == run(asked, GREEDY, *FAKE)
    assert counts["drafted_tokens"] > 0
    assert counts["accepted_drafts"] == 0


@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_a_batch_that_grows_while_runs_are_accepted(kind):
    """Lengths that jump by whole runs, bounds far above them, and requests that join all the time."""
    asked = prompts(20)
    loops = SamplingParams(max_tokens=25, ignore_eos=True, logit_bias={65: 100.0})
    params = [loops if i % 2 else GREEDY for i in range(20)]
    with make(*TINY, *KINDS[kind], "scheduler.chunk_tokens=24") as llm:
        found = answers(llm.generate(asked, params))
        counts = llm.metrics.snapshot()
        llm.check()
    assert found == run(asked, params, *TINY)
    assert counts["peak_running"] >= 8
    assert counts["accepted_drafts"] > 100


def test_nothing_to_look_up_means_plain_steps():
    """N2: a hash of the prefix never repeats itself, and the prompt has no token twice."""
    prompt = list(range(3, 60))
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    with make(*FAKE, *KINDS["adaptive"], "spec.min_match=2") as llm:
        llm.generate([prompt], params)
        counts = llm.metrics.snapshot()
    assert counts["drafted_tokens"] == 0
    assert counts["decode_steps"] in (39, 40), "one token a step, one late step"


@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_a_stop_id_inside_an_accepted_run(kind):
    """E2, E4, E7: whatever was drafted behind a stop id is not shown, wherever in the run it falls."""
    prompt = prompts(3)[2]
    free = run([prompt], SamplingParams(max_tokens=40, ignore_eos=True), *TINY)[0][0]
    with make(*TINY, *KINDS[kind]) as llm:
        for stop in sorted(set(free))[:12]:
            params = SamplingParams(max_tokens=40, ignore_eos=True, stop_token_ids=(stop,))
            [output] = llm.generate([prompt], params)
            assert list(output.completions[0].token_ids) == list(free[: free.index(stop) + 1])
            assert output.completions[0].finish_reason == "stop"
        llm.check()


def test_repeated_word_prompt():
    """L3: a prompt of one word 48 times, K = 4, matches of 2..5."""
    params = SamplingParams(max_tokens=32, temperature=0.0)
    options = ("spec=ngram", "spec.drafts=4", "spec.min_match=2", "spec.max_match=5", "spec.adaptive=false")
    assert run(["serving" * 48], params, *TINY, *options) == run(["serving" * 48], params, *TINY)


def test_markers_in_the_prompt():
    """P24: repeated markers make drafts, at min_match 2 more than at 8; the output is the same."""
    text = "".join(f"<<function=tool_{i}>> does {i * i} things. " for i in range(6))
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    plain = run([text], params, *TINY)
    drafted = []
    for least in (2, 8):
        with make(*TINY, *CHAIN, f"spec.min_match={least}") as llm:
            assert answers(llm.generate([text], params)) == plain
            drafted.append(llm.metrics.snapshot()["drafted_tokens"])
    assert drafted[0] >= drafted[1]


@pytest.mark.parametrize("attention", ["torch", "triton"])
def test_a_corpus_that_holds_the_answer(tmp_path, attention):
    """The prompt repeats nothing and the answer neither; the corpus has both."""
    prompt = "a line of text"
    letters = dict.fromkeys(range(65, 91), 100.0)
    params = SamplingParams(max_tokens=24, ignore_eos=True, logit_bias=letters)
    plain = run([prompt], params, *FAKE)
    path = tmp_path / "corpus.txt"
    path.write_text(f"before\n{prompt}{plain[0][1]} and after")
    for kind in (CHAIN, TREE):
        options = ("spec.min_match=3", f"spec.corpus={path}", f"attention={attention}")
        with make(*FAKE, *kind, *options) as llm:
            assert answers(llm.generate([prompt], params)) == plain
            assert llm.metrics.snapshot()["accepted_drafts"] >= 16


@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_triton(kind):
    asked = prompts(3)[1:]
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    options = (
        *KINDS[kind],
        "spec.drafts=2",
        "attention=triton",
        "cache.max_context=64",
        "sampling.max_tokens=9",
    )
    assert run(asked, params, *TINY, *options) == run(asked, params, *TINY)
