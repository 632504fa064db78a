"""The law of speculative sampling: 200,000 runs of three tokens, chi-square against the exact distribution.

Both rules and all filters and penalties, chains and trees; rules with the mistakes that users report fail the
same test (L5, P7, P8, P10, P11).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from law import PROMPT, VOCAB, accepted_share, exact_joint, p_value, run_counts
from torch import Tensor
from toy_drafters import constant_chain, likely_chain, likely_tree, random_tree, sampled_drafts
from toy_target import Drafter, Loop, Rule, exact, plain, toy_logits

from engine.acceptance import Acceptance, Asked, Judged
from engine.batch import DraftTree
from engine.params import SamplingParams
from engine.sampling.columns import SamplingColumns
from engine.sampling.sampler import Sampled, Sampler
from speculative import ratio
from speculative.ops import TorchDraftOps

LEVEL = 1e-3
SPARSE = (-1, 0, -2, 1, -2, 3)
DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "plain": lambda: plain,
    "chain": lambda: likely_chain(3),
    "one-sided chain": lambda: constant_chain(3, 7),
    "tree": likely_tree,
    "sparse tree": lambda: random_tree(SPARSE, 3),
    "ratio": lambda: sampled_drafts(3),
}
SAMPLINGS: dict[str, dict[str, Any]] = {
    "cold": {"temperature": 0.3},
    "one": {"temperature": 1.0},
    "hot": {"temperature": 1.5},
    "top-k": {"temperature": 1.0, "top_k": 4},
    "top-p": {"temperature": 1.0, "top_p": 0.8},
    "min-p": {"temperature": 1.5, "min_p": 0.15},
    "filters": {"temperature": 1.5, "top_k": 6, "top_p": 0.9, "min_p": 0.05},
    "penalties": {
        "temperature": 1.0,
        "repetition_penalty": 1.5,
        "frequency_penalty": 0.8,
        "presence_penalty": 0.5,
    },
    "everything": {
        "temperature": 1.3,
        "top_p": 0.92,
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.6,
        "logit_bias": {2: 1.5, 6: -100},
        "min_tokens": 2,
        "stop_token_ids": [4],
    },
}
PAIRS = [
    *((drafter, name) for drafter in ("chain", "tree", "ratio") for name in SAMPLINGS),
    *((drafter, "one") for drafter in ("plain", "one-sided chain", "sparse tree")),
]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other take minutes where others use the processor too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def request(name: str) -> SamplingParams:
    return SamplingParams(**SAMPLINGS[name])


@pytest.mark.parametrize(("drafter", "name"), PAIRS)
def test_l5_p7_p8_p11_three_tokens_follow_the_exact_distribution(drafter: str, name: str) -> None:
    params = request(name)
    if drafter != "plain":
        assert accepted_share(params, DRAFTERS[drafter]()) > 0.02
    assert p_value(run_counts(params, DRAFTERS[drafter]()), exact_joint(params)) > LEVEL


def shared_keys(params: SamplingParams, drafter: Drafter) -> Tensor:
    """int32 [B, 3]: the first tokens of a crowd, whose seeds are always the same."""
    row = params.row(len(PROMPT), (), 0, 0, 1 << 20)
    loop = Loop.crowd(toy_logits(VOCAB), PROMPT, row, params.sampling_class(), 3000)
    while bool((loop.known < len(PROMPT) + 3).any()):
        loop.step(drafter)
    return loop.tokens[:, len(PROMPT) : len(PROMPT) + 3]


@pytest.mark.parametrize("name", ["one", "everything"])
def test_matching_keeps_seeded_output_and_the_ratio_test_does_not(name: str) -> None:
    params = request(name)
    without, matched, ratio_tested = (
        shared_keys(params, DRAFTERS[drafter]()) for drafter in ("plain", "tree", "ratio")
    )
    assert torch.equal(matched, without)
    assert 0.1 < (ratio_tested != without).any(1).float().mean() < 0.9


@pytest.mark.parametrize("name", ["one", "filters", "everything"])
def test_the_ratio_test_accepts_more_than_matching_the_same_drafts(name: str) -> None:
    """Sum of min(p, q) against sum of p * q: what the loss of seeded equality buys."""
    drafter = DRAFTERS["ratio"]()

    def undisclosed(loop: Loop) -> DraftTree:
        return replace(drafter(loop), probs=None)

    assert accepted_share(request(name), drafter) > accepted_share(request(name), undisclosed)


class FreshDraw(Acceptance):
    """Wrong: a draft is kept when it equals the target's draw, and otherwise the target draws once more."""

    def __call__(self, asked: Asked) -> Judged:
        judged = super().__call__(asked)
        self._columns.key ^= 0x5A5A5A5A
        fresh = super().__call__(asked).target
        self._columns.key ^= 0x5A5A5A5A
        last = judged.taken.n_accepted.long().unsqueeze(1)
        refused = last < asked.width - 1
        own = judged.taken.emitted.gather(1, last)
        judged.taken.emitted.scatter_(1, last, torch.where(refused, fresh.gather(1, last), own))
        return judged


class BonusFilters(Sampler):
    """Wrong: filters act on the token after the last draft only (what lifting a guard gives, P8)."""

    def __init__(self, width: int) -> None:
        self._width = width

    def __call__(self, logits: Tensor, *args: Any) -> Sampled:
        rows, positions, columns, cls, ancestors = args
        bare = super().__call__(logits, rows, positions, columns, replace(cls, filters=False), ancestors)
        whole = super().__call__(logits, *args)
        return Sampled(torch.where(self._last(logits), whole.tokens, bare.tokens))

    def probabilities(self, logits: Tensor, *args: Any) -> Tensor:
        rows, positions, columns, cls, ancestors = args
        bare = super().probabilities(logits, rows, positions, columns, replace(cls, filters=False), ancestors)
        whole = super().probabilities(logits, *args)
        return torch.where(self._last(logits).unsqueeze(1), whole, bare)

    def _last(self, logits: Tensor) -> Tensor:
        return torch.arange(len(logits)) % self._width == self._width - 1


class StepwisePenalties(Sampler):
    """Wrong: all nodes of a pass are penalised for what was known before it (P10, P11)."""

    def __call__(self, logits: Tensor, *args: Any) -> Sampled:
        return super().__call__(logits, *args[:-1], None)

    def probabilities(self, logits: Tensor, *args: Any) -> Tensor:
        return super().probabilities(logits, *args[:-1], None)


def softmax_residual(p: Tensor, q: Tensor) -> Tensor:
    """Wrong: what is left of the target is soft-maxed instead of normalised (P6)."""
    return (p - q).clamp_min(0).double().softmax(-1)


def plain_redraw(p: Tensor, q: Tensor) -> Tensor:
    """Wrong: a refused draft is replaced by a draw from the target's whole distribution."""
    return p.double()


def with_sampler(sampler: Sampler) -> Rule:
    return lambda columns: Acceptance(sampler, TorchDraftOps(), columns)


def fresh_draw(columns: SamplingColumns) -> FreshDraw:
    return FreshDraw(Sampler(), TorchDraftOps(), columns)


WRONG: dict[str, tuple[str, str, Rule]] = {
    "a fresh draw after a mismatch, chain": ("chain", "one", fresh_draw),
    "filters at the bonus only, chain": ("chain", "top-p", with_sampler(BonusFilters(3))),
    "filters at the bonus only, ratio": ("ratio", "top-p", with_sampler(BonusFilters(3))),
    "penalties of the step, chain": ("chain", "penalties", with_sampler(StepwisePenalties())),
    "penalties of the step, tree": ("tree", "penalties", with_sampler(StepwisePenalties())),
    "penalties of the step, ratio": ("ratio", "penalties", with_sampler(StepwisePenalties())),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_rule_fails_the_same_test(mistake: str) -> None:
    drafter, name, rule = WRONG[mistake]
    params = request(name)
    assert p_value(run_counts(params, DRAFTERS[drafter](), rule, 50_000), exact_joint(params)) < 1e-6


@pytest.mark.parametrize("residual", [softmax_residual, plain_redraw])
def test_a_wrong_residual_fails_the_same_test(monkeypatch: pytest.MonkeyPatch, residual: Any) -> None:
    monkeypatch.setattr(ratio, "residual", residual)
    params = request("one")
    assert p_value(run_counts(params, DRAFTERS["ratio"](), exact, 50_000), exact_joint(params)) < 1e-6
