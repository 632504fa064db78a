"""Requests, drafters and references that the graph tests share: batches that grow, shrink and are padded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest
import torch
from support.device_drafters import Follower, follow_table, teach_drafts
from support.static_attention import static_engine

from engine.answers import Completion
from engine.llm import LLM
from engine.params import SamplingParams

VOCAB = 512
PROMPTS = [[(7 * i + 3 * j * j) % 251 for j in range(3 + 9 * i)] for i in range(6)]
LENGTHS = (5, 28, 9, 22, 1, 16)
BASE = (
    "model.layers=2",
    "cache.max_context=96",
    "sampling.max_tokens=18",
    "scheduler.max_running=4",
    "graph.sizes=[1,2,4]",
)
PLAIN = tuple(option for option in BASE if not option.startswith("graph."))
GREEDY = tuple(SamplingParams(max_tokens=n, ignore_eos=True) for n in LENGTHS)
KINDS: tuple[Mapping[str, object], ...] = (
    {},
    {"temperature": 0.8, "seed": 3},
    {"temperature": 1.2, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "seed": 5},
    {"temperature": 0.7, "seed": 8, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "min_tokens": 4},
    {"logprobs": 2, "logit_bias": {65: 2.0}},
    {"presence_penalty": 0.3, "speculative": False},
)
MIXED = tuple(replace(greedy, **kind) for greedy, kind in zip(GREEDY, KINDS, strict=True))
CHAIN = ("spec=eagle3", "spec.load=dummy", "spec.adaptive=false")
TREE = (*CHAIN, "spec.topk=3", "spec.num_steps=3", "spec.num_draft_tokens=8")


@cache
def greedy_answers() -> tuple[tuple[int, ...], ...]:
    """Of the undisturbed run: plain, eager, one request at a time."""
    return tuple(c.token_ids for c in reference("greedy"))


@cache
def table() -> torch.Tensor:
    """What followed each token in those."""
    return follow_table(PROMPTS, greedy_answers(), VOCAB)


def params(sampling: str) -> tuple[SamplingParams, ...]:
    """greedy; mixed: one of each kind; stops: greedy, each with a token of its own answer as a stop id."""
    if sampling == "stops":
        return tuple(
            replace(own, stop_token_ids=(answer[len(answer) // 2],))
            for own, answer in zip(GREEDY, greedy_answers(), strict=True)
        )
    return GREEDY if sampling == "greedy" else MIXED


@cache
def reference(sampling: str) -> tuple[Completion, ...]:
    """Plain eager decoding, one request at a time."""
    options = ("overlap=none", "cache=none", "scheduler.max_running=1")
    with static_engine(*PLAIN, *options) as llm:
        return samples(llm, sampling)


def samples(llm: LLM, sampling: str) -> tuple[Completion, ...]:
    """The requests' only samples; the engine's accounting is checked."""
    outputs = llm.generate(PROMPTS, params(sampling))
    llm.check()
    return tuple(output.completions[0] for output in outputs)


def drafting(case: str, monkeypatch: pytest.MonkeyPatch) -> tuple[tuple[str, ...], dict[str, object]]:
    """(overrides, parts) of a draft algorithm by its name here."""
    if case.startswith("eagle3"):
        teach_drafts(monkeypatch, table())
        return (TREE if case == "eagle3 tree" else CHAIN), {}
    if case in ("chain", "tree"):
        return (), {"speculator": Follower(table(), drafts=3, tree=case == "tree")}
    return {"none": (), "ngram": ("spec=ngram", "spec.adaptive=false", "spec.drafts=3")}[case], {}


def same(found: tuple[Completion, ...], wanted: tuple[Completion, ...]) -> None:
    """Ids, ends and log-probabilities."""
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.token_ids == theirs.token_ids
        assert mine.finish_reason == theirs.finish_reason
        assert (mine.logprobs is None) == (theirs.logprobs is None)
        for one, other in zip(mine.logprobs or (), theirs.logprobs or (), strict=True):
            assert one.token == other.token
            assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
            assert [token for token, _ in one.top] == [token for token, _ in other.top]
