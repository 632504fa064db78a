"""The law through the whole engine: samples of one prompt, with drafts, against the exact distribution.

The target is a small random model; the exact probabilities come from one prefill a prefix.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from support.engines import TINY, make
from support.sampled import Believer, convince
from support.sampling_reference import chi_square_p, distribution

from engine.batch import DraftTree
from engine.llm import LLM
from engine.params import SamplingParams
from speculative.views import DraftView

PROMPT = [72, 101, 108, 72]
VOCAB = 259
SIZES = (*TINY, f"model.vocab={VOCAB}", "scheduler.max_running=64", "overlap.debug=true")
EAGLE3 = (
    "spec=eagle3",
    "spec.load=dummy",
    "spec.adaptive=false",
    "spec.num_steps=2",
    "spec.num_draft_tokens=3",
)
REQUESTS, SAMPLES = 16, 128
SAMPLINGS: dict[str, dict[str, Any]] = {
    "top-k": {"temperature": 1.5, "top_k": 4},
    "top-p": {"temperature": 0.5, "top_p": 0.85},
    "min-p": {"temperature": 0.8, "min_p": 0.25},
    "penalties": {
        "temperature": 1.0,
        "top_k": 3,
        "repetition_penalty": 1.6,
        "frequency_penalty": 1.0,
        "presence_penalty": 0.5,
    },
    "bias": {"temperature": 1.0, "top_k": 4, "logit_bias": {72: 4.0, 101: 4.0, 7: 4.0}},
    "min tokens": {
        "temperature": 1.0,
        "top_k": 3,
        "min_tokens": 3,
        "logit_bias": {9: 6.0},
        "stop_token_ids": [9],
    },
}


def request(name: str, seed: int = 0) -> SamplingParams:
    return SamplingParams(max_tokens=3, ignore_eos=True, n=SAMPLES, seed=seed, **SAMPLINGS[name])


@cache
def tree_of(name: str) -> tuple[dict[tuple[int, ...], np.ndarray], torch.Tensor]:
    """(the distribution after each prefix that can come up, what a decent drafter would believe [V, V])."""
    params, found = request(name), {}
    row = params.row(len(PROMPT), (), 0, 0, 4096)
    beliefs = torch.zeros(VOCAB, VOCAB)
    with make(*SIZES) as llm:
        prefixes: list[tuple[int, ...]] = [()]
        for prefix in prefixes:
            logits = llm.next_token_logits([*PROMPT, *prefix])
            beliefs[prefix[-1] if prefix else PROMPT[-1]] = logits
            found[prefix] = distribution(logits.double().numpy(), row, PROMPT, prefix)
            if len(prefix) < 2:
                prefixes += [(*prefix, int(token)) for token in found[prefix].nonzero()[0]]
    noise = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(3))
    return found, 1.5 * beliefs + 0.3 * noise


def joint(name: str) -> dict[tuple[int, ...], float]:
    """Probability of every run of three tokens."""
    after, _ = tree_of(name)
    runs: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        runs = {
            (*run, int(token)): share * after[run][token]
            for run, share in runs.items()
            for token in after[run].nonzero()[0]
        }
    return runs


def engine(kind: str, name: str, *overrides: str) -> LLM:
    _, beliefs = tree_of(name)
    if kind.startswith("eagle3"):
        shape = ("spec.topk=2", "spec.num_draft_tokens=5") if kind == "eagle3 tree" else ()
        rule = ("spec.acceptance=ratio",) if kind == "eagle3 ratio" else ()
        llm = make(*SIZES, *EAGLE3, *shape, *rule)
        convince(llm, beliefs)
        return llm
    drafter = Believer(beliefs, drafts=2, sampled=kind == "ratio", tree=kind == "tree")
    return make(*SIZES, *overrides, parts={"speculator": drafter})


def p_of(llm: LLM, name: str) -> float:
    runs = joint(name)
    places = {run: i for i, run in enumerate(runs)}
    counts = np.zeros(len(runs) + 1)
    outputs = llm.generate([PROMPT] * REQUESTS, [request(name, seed) for seed in range(REQUESTS)])
    for output in outputs:
        for sample in output.completions:
            counts[places.get(sample.token_ids, len(runs))] += 1
    llm.check()
    assert counts[-1] == 0, "something impossible was sampled"
    return chi_square_p(counts[:-1], np.array(list(runs.values())))


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("kind", ["chain", "tree", "ratio", "eagle3 ratio"])
def test_l5_p8_p11_samples_follow_the_exact_distribution(kind: str, name: str) -> None:
    with engine(kind, name) as llm:
        assert p_of(llm, name) > 1e-3
        counts = llm.metrics.snapshot()
        assert counts["accepted_drafts"] > 0.1 * counts["decode_tokens"]


class Liar(Believer):
    """Draws from its beliefs and says that it was undecided between the possible tokens."""

    def propose(self, view: DraftView) -> DraftTree:
        tree = super().propose(view)
        if tree.probs is None:
            return tree
        flat = (tree.probs > 0.02).float() + 1e-3
        return replace(tree, probs=flat / flat.sum(-1, keepdim=True))


@pytest.mark.parametrize("name", ["top-k", "min-p", "bias"])
def test_a_drafter_that_misstates_its_distribution_is_caught(name: str) -> None:
    """The ratio test is as exact as its q: the same test, and its power."""
    _, beliefs = tree_of(name)
    with make(*SIZES, parts={"speculator": Liar(beliefs, drafts=2, sampled=True)}) as llm:
        assert p_of(llm, name) < 1e-6


@pytest.mark.parametrize("name", SAMPLINGS)
def test_there_is_something_to_test(name: str) -> None:
    shares = np.array(list(joint(name).values()))
    assert shares.sum() == pytest.approx(1)
    assert (shares * REQUESTS * SAMPLES >= 5).sum() >= 8
