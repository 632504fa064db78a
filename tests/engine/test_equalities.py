"""What must not change the output: loop, batch size, chunks, cache, retraction, page size. Greedy and seeded,
fp32.
"""

from __future__ import annotations

import random

import pytest
from support.engines import FAKE, TINY, answers, make, run

from engine.params import SamplingParams

BASE = ("overlap=none", "cache=none", "scheduler.max_running=1")
PATHS = {
    "overlap": ("overlap=future",),
    "overlap debug": ("overlap=future", "overlap.debug=true"),
    "serial batch": ("overlap=none", "overlap.debug=true"),
    "batch 1": ("overlap=future", "scheduler.max_running=1"),
    "batch 3": ("overlap=future", "scheduler.max_running=3"),
    "chunk 32": ("overlap=future", "scheduler.chunk_tokens=32"),
    "chunk 7": ("overlap=none", "scheduler.chunk_tokens=7"),
    "no cache": ("overlap=future", "cache=none"),
    "page 1": ("overlap=future", "cache.page_size=1"),
    "page 64": ("overlap=future", "cache.page_size=64"),
    "page 64, chunk 32": ("overlap=future", "cache.page_size=64", "scheduler.chunk_tokens=32"),
    "longest prefix": ("overlap=future", "scheduler=longest_prefix"),
    "two prefills": ("overlap=future", "scheduler.prefill_streak=2", "scheduler.chunk_tokens=16"),
    "retraction": (
        "overlap=future",
        "cache.tokens=288",
        "cache.max_context=160",
        "scheduler.headroom=0",
        "sampling.max_tokens=9",
    ),
    "serial retraction": (
        "overlap=none",
        "cache.tokens=288",
        "cache.max_context=160",
        "scheduler.headroom=0",
        "sampling.max_tokens=9",
    ),
}
SAMPLINGS = {
    "greedy": {},
    "seeded": {"temperature": 0.8, "seed": 11},
    "filtered": {"temperature": 1.2, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "seed": 3},
    "penalised": {
        "temperature": 0.7,
        "seed": 5,
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.2,
        "logit_bias": {65: 2.0, 66: -100.0},
        "min_tokens": 4,
    },
}


def _prompts(seed: int = 0) -> list[list[int]]:
    """Ids of many lengths; three share a long prefix, two are equal."""
    source = random.Random(seed)
    shared = [source.randrange(256) for _ in range(70)]
    prompts = [[source.randrange(256) for _ in range(n)] for n in (1, 5, 16, 17, 33, 64, 90)]
    prompts += [shared + [source.randrange(256) for _ in range(n)] for n in (1, 9, 20)]
    return [*prompts, prompts[-1]]


def _params(sampling: str) -> list[SamplingParams]:
    lengths = [4, 9, 17, 24, 33, 40, 12, 1, 30, 21, 21]
    extra = dict(SAMPLINGS[sampling])
    least = extra.pop("min_tokens", 0)
    return [
        SamplingParams(max_tokens=n, min_tokens=min(least, n), ignore_eos=i % 2 == 0, **extra)
        for i, n in enumerate(lengths)
    ]


@pytest.fixture(scope="module")
def reference() -> dict[tuple[str, str], object]:
    """Answers of the slow path: serial, one request at a time, no cache."""
    return {
        (name, sampling): run(_prompts(), _params(sampling), *model, *BASE)
        for name, model in (("tiny", TINY), ("fake", FAKE))
        for sampling in SAMPLINGS
    }


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("path", PATHS)
def test_no_path_changes_the_answers(reference, path: str, sampling: str) -> None:
    for name, model in (("tiny", TINY), ("fake", FAKE)):
        found = run(_prompts(), _params(sampling), *model, *PATHS[path])
        assert found == reference[name, sampling], (name, path, sampling)


def test_the_reference_is_worth_comparing_with(reference) -> None:
    """Answers differ from each other, and samplings differ from greedy: equality above means something."""
    for name in ("tiny", "fake"):
        ids = [answer[0] for answer in reference[name, "greedy"]]
        assert len(set(ids)) >= 9
        assert len({str(reference[name, sampling]) for sampling in SAMPLINGS}) == len(SAMPLINGS)


def test_retraction_happened() -> None:
    with make(*FAKE, *PATHS["retraction"]) as llm:
        llm.generate(_prompts(), _params("greedy"))
        assert llm.metrics.retractions > 0
        llm.check()


def test_the_cache_is_used_the_second_time() -> None:
    with make(*FAKE, "overlap=future") as llm:
        first = llm.generate(_prompts(), _params("greedy"))
        again = llm.generate(_prompts(), _params("greedy"))
        assert answers(first) == answers(again)
        for output in again:
            most = (output.prompt_tokens - 1) // 16 * 16
            assert output.cached_tokens == most, "whole pages of the prompt, but never its last token (K7)"


def test_equal_prompts_in_one_batch_do_not_share_live_pages() -> None:
    """K6: the same prompt twice, three pages and 44 tokens of 64."""
    prompt = [i % 251 for i in range(3 * 64 + 44)]
    alone = run([prompt], SamplingParams(max_tokens=20), *TINY, "cache.page_size=64")
    both = run([prompt, prompt], SamplingParams(max_tokens=20), *TINY, "cache.page_size=64")
    assert both == alone * 2


@pytest.mark.parametrize("loop", ["none", "future"])
@pytest.mark.parametrize("concurrency", [1, 4, 8, 32])
def test_loop_by_concurrency(loop: str, concurrency: int, reference) -> None:
    """O5: the same ids for both loops at every concurrency."""
    found = run(
        _prompts(), _params("seeded"), *TINY, f"overlap={loop}", f"scheduler.max_running={concurrency}"
    )
    assert found == reference["tiny", "seeded"]


@pytest.mark.parametrize("loop", ["none", "future"])
def test_forgotten_prefixes_are_computed_again(loop: str) -> None:
    prompt, params = list(range(70)), SamplingParams(max_tokens=5, ignore_eos=True)
    with make(*FAKE, f"overlap={loop}") as llm:
        first = llm.generate([prompt], params)
        assert llm.forget_prefixes() == 4, "74 tokens with KV: four whole pages of 16"
        again = llm.generate([prompt], params)
        assert [o.cached_tokens for o in (*first, *again)] == [0, 0]
        assert llm.generate([prompt], params)[0].cached_tokens == 64
        assert answers(first) == answers(again)
        llm.check()
