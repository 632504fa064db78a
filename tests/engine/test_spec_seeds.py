"""Seeds and randomness with drafts, through the engine: per request, per sample, whatever the batch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from support.engines import TINY, answers, make, run
from support.sampled import convince
from test_spec_table import ALGORITHMS

from engine.llm import LLM
from engine.params import SamplingParams

PROMPT = [72, 101, 108, 108, 111] * 3
WARM = SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.0)
SEEDED = replace(WARM, seed=42)


@pytest.fixture(scope="module", params=ALGORITHMS)
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    engine = make(*TINY, *ALGORITHMS[request.param], "overlap.debug=true")
    if request.param.startswith("eagle3"):
        beliefs = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
        convince(engine, beliefs)
    yield engine
    engine.close()


def test_p15_a_seed_gives_the_same_ids_alone_in_a_batch_and_later(llm: LLM) -> None:
    alone = answers(llm.generate([PROMPT], SEEDED))
    others = [replace(WARM, seed=seed) for seed in range(100, 115)]
    batch = answers(llm.generate([PROMPT] * 16, [*others[:7], SEEDED, *others[7:]]))
    llm.generate([PROMPT] * 20, WARM)
    assert batch[7:8] == alone
    assert answers(llm.generate([PROMPT], SEEDED)) == alone
    assert len({ids for ids, _, _ in batch}) == 16


def test_p16_unseeded_requests_differ(llm: LLM) -> None:
    outputs = [answers(llm.generate([PROMPT], WARM))[0][0] for _ in range(20)]
    assert len(set(outputs)) >= 15


def test_s5_samples_of_one_seeded_request_differ_and_repeat(llm: LLM) -> None:
    params = replace(WARM, n=4, seed=1)
    [first], [second] = llm.generate([PROMPT], params), llm.generate([PROMPT], params)
    assert answers([first]) == answers([second])
    assert [sample.index for sample in first.completions] == [0, 1, 2, 3]
    assert len({sample.token_ids for sample in first.completions}) == 4
    assert len(first.prompt_ids) == len(PROMPT)
    assert first.completion_tokens == 4 * 12


def test_p4_temperature_has_an_effect(llm: LLM) -> None:
    """300 seeds on logits that a high temperature makes flat."""
    params = [replace(WARM, temperature=20.0, max_tokens=2, seed=seed) for seed in range(300)]
    ids = [ids for ids, _, _ in answers(llm.generate([PROMPT] * 300, params))]
    assert len({first for first, _ in ids}) > 150
    assert len({second for _, second in ids}) > 150


def test_p8_a_banned_token_never_comes(llm: LLM) -> None:
    """min_p and logit_bias act on every token of a run, not on its last alone: 500 tokens."""
    params = replace(WARM, max_tokens=25, min_p=0.05, temperature=1.5)
    seeds = [replace(params, seed=seed) for seed in range(20)]
    seen = [t for ids, _, _ in answers(llm.generate([PROMPT] * 20, seeds)) for t in ids]
    common = max(set(seen), key=seen.count)
    assert seen.count(common) > 3
    banned = [replace(p, logit_bias={common: -100.0}) for p in seeds]
    found = answers(llm.generate([PROMPT] * 20, banned))
    assert sum(len(ids) for ids, _, _ in found) == 500
    assert not any(common in ids for ids, _, _ in found)


def test_p3_logprobs_of_filtered_samples_are_finite_json(llm: LLM) -> None:
    params = replace(SEEDED, top_p=0.3, logprobs=5, logit_bias={7: -100.0})
    [output] = llm.generate([PROMPT], params)
    rows = output.completions[0].logprobs
    assert rows is not None
    text = json.dumps([[entry.logprob, [value for _, value in entry.top]] for entry in rows])

    def fail(constant: str) -> None:
        raise AssertionError(constant)

    for own, best in json.loads(text, parse_constant=fail):
        assert own < 0
        assert best == sorted(best, reverse=True)


def test_a_request_that_declines_drafts_has_plain_output_under_the_ratio_test() -> None:
    """Seeded equality is given up for drafts only: without them every coin is that of plain decoding."""
    params = [replace(SEEDED, seed=seed, speculative=seed % 2 == 0) for seed in range(8)]
    plain = run([PROMPT] * 8, params, *TINY)
    with make(*TINY, *ALGORITHMS["eagle3 ratio"]) as llm:
        found = answers(llm.generate([PROMPT] * 8, params))
    assert found[1::2] == plain[1::2]
    assert found[::2] != plain[::2]


def test_greedy_requests_stay_greedy_among_sampled_ones_under_the_ratio_test() -> None:
    greedy = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=2)
    plain = run([PROMPT] * 2, greedy, *TINY)
    with make(*TINY, *ALGORITHMS["eagle3 ratio"]) as llm:
        convince(llm, torch.randn(512, 512, generator=torch.Generator().manual_seed(0)))
        found = answers(llm.generate([PROMPT] * 4, [greedy, SEEDED, greedy, WARM]))
    assert found[::2] == plain
