"""Rows that change hands, requests that are cancelled, drafts of another shape, wide trees: the draft's KV is
what a fresh forward computes all the time, so no draft is worse for it; the output is that of plain decoding.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from eagle3_cases import CONFIG, tensors_of, write
from support.eagle3 import CHAIN, PROMPTS, TREE, Audit, bigrams, drafter_of, engine, teach
from support.engines import TINY, answers, run

from engine.llm import LLM
from engine.params import SamplingParams
from speculative.views import DraftView, Observed

KINDS = {"chain": CHAIN, "tree": TREE}
WIDE = (*CHAIN, "spec.topk=4", "spec.num_steps=3", "spec.num_draft_tokens=16")
SHORT = [SamplingParams(max_tokens=1 + i % 4, ignore_eos=True) for i in range(24)]
CHASING = [[i % 250 + 1, 7, i % 13] * (1 + i % 3) for i in range(24)]


@pytest.mark.parametrize("loop", ["none", "future"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_is_reused_at_once_starts_clean(kind: str, loop: str) -> None:
    """O3: a request of a few tokens gives its row to the next one while its last step is still on its way."""
    table = bigrams(CHASING, SHORT[3])
    with engine(*KINDS[kind], "scheduler.max_running=2", f"overlap={loop}") as llm:
        teach(llm, table)
        audit = Audit(llm)
        found = answers(llm.generate(CHASING, SHORT))
        llm.check()
        assert llm.metrics.snapshot()["accepted_drafts"] > 0
    assert found == run(CHASING, SHORT, *TINY, "overlap=none")
    assert audit.checked > 40


def a_step_late(llm: LLM) -> None:
    """Wrong: what a verify step taught the draft is written when the next one is over."""
    drafter = drafter_of(llm)
    observe: Callable[[DraftView, Observed], None] = drafter.observe
    waiting: list[tuple[DraftView, Observed]] = []

    def late(view: DraftView, seen: Observed) -> None:
        waiting.append((view, seen))
        if len(waiting) > 1:
            observe(*waiting.pop(0))

    vars(drafter)["observe"] = late


def test_a_late_draft_extend_is_seen() -> None:
    """Proves that the test above can fail."""
    with engine(*CHAIN, "scheduler.max_running=2", "overlap=none") as llm:
        a_step_late(llm)
        Audit(llm)
        with pytest.raises(AssertionError):
            llm.generate(CHASING, SHORT)


@pytest.mark.parametrize("kind", KINDS)
def test_cancels_at_random_leave_the_others_whole(kind: str) -> None:
    """S4, K2: drafts, one step ahead, a small pool; accounts are checked after every step."""
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    prompts = [[(5 * i + j) % 250 + 1 for j in range(3 + i % 17)] for i in range(40)]
    small = ("cache.tokens=160", "cache.max_context=64", "scheduler.headroom=0", "scheduler.max_running=4")
    plain = run(prompts, params, *TINY, "overlap=none")
    source, gone = random.Random(1), set()
    with engine(*KINDS[kind], *small, "sampling.max_tokens=9", "scheduler.chunk_tokens=16") as llm:
        teach(llm, bigrams(prompts, params))
        audit = Audit(llm)
        names = [llm.add(prompt, params) for prompt in prompts]
        for _ in range(400):
            if not llm.has_work():
                break
            if source.random() < 0.2:
                victim = source.choice(names)
                gone |= {victim} if llm.cancel(victim) else set()
            llm.step()
            llm.check()
        found = [llm.output(name) for name in names]
        assert not llm.has_work()
    assert 5 < len(gone) < 35
    assert audit.checked > 50
    for name, output, whole in zip(names, found, plain, strict=True):
        assert output is not None
        [(ids, _, _)] = answers([output])
        assert ids == (whole[0][: len(ids)] if name in gone else whole[0])


@pytest.mark.parametrize("page", [1, 16])
def test_a_draft_of_other_heads_than_its_target(tmp_path: Path, page: int) -> None:
    """C8: eight query and four KV heads of 32 over a target with four, two and 16: each pool has its own."""
    config = {
        **CONFIG,
        "vocab_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
    }
    folder = write(tmp_path / "draft", config, tensors_of(config))
    params = SamplingParams(max_tokens=10, ignore_eos=True)
    own = ("spec=eagle3", f"spec.draft={folder}", "spec.adaptive=false", f"cache.page_size={page}")
    with engine(*own) as llm:
        teach(llm, bigrams(PROMPTS[:4], params))
        audit = Audit(llm)
        found = answers(llm.generate(PROMPTS[:4], params))
        pools = [pool.layers[0].k.shape[1:] for pool in (llm._container.pool(), llm._container.draft_pool())]
    assert pools == [(2, 16), (4, 32)]
    assert found == run(PROMPTS[:4], params, *TINY, "overlap=none")
    assert max(audit.accepted) >= 2


@pytest.mark.parametrize("batch", [1, 5, 8])
def test_a_wide_tree_equals_a_chain(batch: int) -> None:
    """L6, L7: three levels, four continuations, 16 tokens a request, an odd batch too; scattered nodes are
    accepted, and the KV that they leave behind is dense."""
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    prompts = [[(3 * i + j) % 250 + 1 for j in range(4 + 3 * i)] for i in range(batch)]
    table = bigrams(prompts, params)
    found = []
    for shape in (WIDE, (*CHAIN, "spec.num_steps=3")):
        with engine(*shape) as llm:
            teach(llm, table)
            audit = Audit(llm)
            found.append(answers(llm.generate(prompts, params)))
            llm.check()
        assert max(audit.accepted) >= 2
    assert found[0] == found[1] == run(prompts, params, *TINY, "overlap=none")


@pytest.mark.parametrize("kind", KINDS)
def test_prefixes_from_the_cache_are_as_good_as_computed_ones(kind: str) -> None:
    """Q6: prompts with a common beginning, together and once more: what the cache holds of the draft is right
    for each of them, after prefill and after every step."""
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    prompts = [[*((5 * i) % 250 + 1 for i in range(32 + i % 3)), 200 + i, 7] for i in range(6)]
    with engine(*KINDS[kind], "scheduler.max_running=3") as llm:
        teach(llm, bigrams(prompts, params))
        audit = Audit(llm)
        first = answers(llm.generate(prompts, params))
        before = audit.checked, llm.metrics.snapshot()["cached_tokens"]
        assert answers(llm.generate(prompts, params)) == first
        llm.check()
        assert audit.checked - before[0] > 12
        assert llm.metrics.snapshot()["cached_tokens"] - before[1] >= 6 * 32
    assert first == run(prompts, params, *TINY, "overlap=none", "cache=none")
