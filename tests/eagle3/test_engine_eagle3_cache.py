"""The prefix cache with a draft whose KV at i depends on token i + 1: what is shared is right."""

from __future__ import annotations

import pytest
from support.eagle3 import CHAIN, TREE, Audit, bigrams, engine, teach
from support.engines import TINY, answers, make, run

from engine.llm import LLM
from engine.params import SamplingParams

KINDS = {"chain": CHAIN, "tree": TREE}
SHORT = SamplingParams(max_tokens=8, ignore_eos=True)
COMMON = [(5 * i) % 250 + 1 for i in range(32)]  # two pages of 16


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_prompts_that_part_at_a_page_boundary(kind: str, page: int) -> None:
    """Q7: the draft's last common entry knows the next token, so its page is not shared; the audit looks at
    every entry of the second request, shared ones included."""
    prompts = [[*COMMON, 200, 3], [*COMMON, 201, 3], [*COMMON, 200, 3, 9]]
    with engine(*KINDS[kind], f"cache.page_size={page}") as llm:
        teach(llm, bigrams(prompts, SHORT))
        audit = Audit(llm)
        found, cached = [], []
        for prompt in prompts:
            before = llm.metrics.snapshot()["cached_tokens"]
            found += answers(llm.generate([prompt], SHORT))
            cached.append(llm.metrics.snapshot()["cached_tokens"] - before)
        llm.check()
    assert found == run(prompts, SHORT, *TINY, "overlap=none", "cache=none")
    assert cached == ([0, 31, 33] if page == 1 else [0, 16, 32])
    assert audit.checked > 6


@pytest.mark.parametrize("kind", KINDS)
def test_cache_on_and_off_accept_alike(kind: str) -> None:
    """Q6: the same prompts twice, with and without the prefix cache, have the same accept length."""
    prompts = [[*COMMON, i, 7] for i in range(6)]
    lengths = []
    for cache in ("radix", "none"):
        with engine(*KINDS[kind], f"cache={cache}") as llm:
            teach(llm, bigrams(prompts, SHORT))
            for _ in range(2):
                llm.generate(prompts, SHORT)
            counts = llm.metrics.snapshot()
            lengths.append(counts["decode_tokens"] / counts["decode_results"])
            assert (counts["cached_tokens"] > 0) == (cache == "radix")
    assert lengths[0] == pytest.approx(lengths[1], abs=0.02)
    assert lengths[0] > 1.2


def conversation(llm: LLM) -> float:
    """Share of prompt tokens that the cache held, over six turns."""
    prompt = [*COMMON]
    for turn in range(6):
        [output] = llm.generate([prompt], SHORT)
        prompt = [*prompt, *output.completions[0].token_ids, 17 + turn, 40, 41, 42]
    counts = llm.metrics.snapshot()
    return float(counts["cached_tokens"]) / float(counts["prompt_tokens"])


def test_a_conversation_keeps_its_prefix() -> None:
    """K14: drafts cost at most the last page of what is reused."""
    with make(*TINY) as llm:
        plain = conversation(llm)
    with engine(*CHAIN) as llm:
        drafted = conversation(llm)
    assert plain > 0.4
    assert drafted >= 0.95 * plain
