"""Draws of the sampler follow the exact distribution, with every option and all of them together."""

import numpy as np
import pytest
import torch
from sampler_cases import CPU, OUTPUT, PROMPT, table
from support.sampling_reference import chi_square_p, distribution

from engine.params import SamplingParams, sample_key
from engine.sampling.columns import SamplingColumns
from engine.sampling.sampler import Sampler

DRAWS = 20000
KEYS = torch.tensor([sample_key(seed, 0) - (1 << 63) for seed in range(DRAWS)])  # any 64 bits will do


def draw_many(params: SamplingParams, logits: torch.Tensor, prompt=(), output=()) -> np.ndarray:
    """Counts of DRAWS tokens, each with the key of another seed."""
    row = params.row(len(PROMPT), (), 0, 0, 10**6)
    columns = SamplingColumns(DRAWS + 1, len(logits), CPU, penalties=True)
    rows = torch.arange(1, DRAWS + 1)
    one = table([row], len(logits), prompt, output)
    for name, column in vars(columns).items():
        if isinstance(column, torch.Tensor):
            column[1:] = getattr(one, name)[1]
    columns.key[1:] = KEYS
    position = torch.full((DRAWS,), len(prompt) + len(output))
    got = Sampler()(logits.repeat(DRAWS, 1), rows, position, columns, params.sampling_class())
    return np.bincount(got.tokens.numpy(), minlength=len(logits)).astype(float)


COMBINATIONS = {
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 5.0},
    "top_k": {"temperature": 1.0, "top_k": 3},
    "top_p": {"temperature": 1.2, "top_p": 0.6},
    "min_p": {"temperature": 1.5, "min_p": 0.15},
    "all filters": {"temperature": 1.5, "top_k": 6, "top_p": 0.9, "min_p": 0.02},
    "bias": {"temperature": 1.0, "logit_bias": {0: 2.5, 5: -3.0}},
    "penalties": {
        "temperature": 1.0,
        "repetition_penalty": 1.5,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.3,
    },
    "negative penalties": {"temperature": 1.0, "repetition_penalty": 0.8, "frequency_penalty": -0.5},
    "everything": {
        "temperature": 1.3,
        "top_k": 6,
        "top_p": 0.95,
        "min_p": 0.01,
        "logit_bias": {3: 1.0},
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.1,
        "min_tokens": 20,
        "stop_token_ids": [1],
    },
}


@pytest.mark.parametrize("vocab", [8, 64])
@pytest.mark.parametrize("name", COMBINATIONS)
def test_draws_follow_the_exact_distribution(name, vocab):
    torch.manual_seed(vocab)
    logits = torch.randn(vocab) * 1.5
    params = SamplingParams(**COMBINATIONS[name])
    counts = draw_many(params, logits, PROMPT, OUTPUT)
    expected = distribution(logits.numpy(), params.row(4, (), 0, 0, 10**6), PROMPT, OUTPUT)
    assert chi_square_p(counts, expected) > 1e-3


def test_the_chi_square_has_power():
    logits = torch.tensor([0.0, 1.0, 2.0, 0.5])
    counts = draw_many(SamplingParams(temperature=1.0), logits)
    wrong = SamplingParams(temperature=1.05).row(4, (), 0, 0, 100)
    assert chi_square_p(counts, distribution(logits.numpy(), wrong)) < 1e-4
