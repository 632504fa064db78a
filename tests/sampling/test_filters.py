"""Top-k, top-p and min-p against a plain loop and against transformers' own processors."""

import numpy as np
import pytest
import torch
from support.sampling_reference import filtered

from engine.sampling.choose import argmax_tokens, inverse_cdf, sum_rows
from engine.sampling.filters import apply_filters

VOCABS = (2, 7, 64, 96, 512, 1000)


def weights_of(logits: torch.Tensor) -> torch.Tensor:
    return (logits - logits.amax(-1, keepdim=True)).exp()


def run(weights: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    rows = len(weights)
    return apply_filters(
        weights.clone(),
        torch.full((rows,), top_k, dtype=torch.int32),
        torch.full((rows,), top_p),
        torch.full((rows,), min_p),
    )


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [
        (1, 1, 0),
        (3, 1, 0),
        (50, 1, 0),
        (10**6, 1, 0),
        (0, 0.5, 0),
        (0, 0.95, 0),
        (0, 1e-6, 0),
        (0, 1, 0.1),
        (0, 1, 1.0),
        (5, 0.8, 0),
        (20, 0.9, 0.05),
        (0, 1, 0),
    ],
)
def test_equals_the_plain_loop(vocab, top_k, top_p, min_p):
    torch.manual_seed(vocab)
    weights = weights_of(torch.randn(5, vocab) * 3)
    got = run(weights, top_k, top_p, min_p)
    for row in range(5):
        expected = filtered(weights[row].double().numpy(), top_k, top_p, min_p)
        np.testing.assert_allclose((got[row] / got[row].sum()).numpy(), expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(("top_k", "top_p"), [(2, 1.0), (5, 1.0), (0, 0.25), (0, 0.5), (6, 0.5)])
@pytest.mark.parametrize("levels", [1, 2, 3])
def test_ties_keep_the_lower_ids(top_k, top_p, levels):
    weights = torch.tensor([0.25, 0.5, 1.0])[-levels:].repeat(16 // levels + 1)[:16].unsqueeze(0)
    got = run(weights, top_k, top_p, 0.0)[0]
    expected = filtered(weights[0].double().numpy(), top_k, top_p, 0.0)
    assert (got > 0).tolist() == (expected > 0).tolist()


def test_every_row_has_its_own_limits():
    torch.manual_seed(0)
    weights = weights_of(torch.randn(6, 300) * 2)
    top_k, top_p, min_p = [0, 1, 40, 0, 7, 0], [1, 1, 0.9, 0.3, 1, 1.0], [0, 0, 0, 0, 0.2, 0.4]
    got = apply_filters(
        weights.clone(), torch.tensor(top_k).int(), torch.tensor(top_p).float(), torch.tensor(min_p).float()
    )
    for row, limits in enumerate(zip(top_k, top_p, min_p, strict=True)):
        expected = filtered(weights[row].double().numpy(), *limits)
        np.testing.assert_allclose((got[row] / got[row].sum()).numpy(), expected, rtol=1e-5)
    assert torch.equal(got[0], weights[0])  # nothing set: not one bit changes
    alone = torch.cat([run(weights[r : r + 1], top_k[r], top_p[r], min_p[r]) for r in range(6)])
    assert torch.equal(got, alone)


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p", "temperature"),
    [(5, 1, 0, 1), (50, 1, 0, 0.3), (0, 0.3, 0, 1), (0, 0.9, 0, 2), (0, 1, 0.2, 1), (20, 0.7, 0.05, 1.5)],
)
def test_equals_the_processors_of_transformers(top_k, top_p, min_p, temperature):
    hf = pytest.importorskip("transformers.generation.logits_process")
    torch.manual_seed(1)
    logits = torch.randn(8, 500) * 3
    chain = [hf.TemperatureLogitsWarper(float(temperature))]
    chain += [hf.TopKLogitsWarper(top_k)] if top_k else []
    chain += [hf.TopPLogitsWarper(float(top_p))] if top_p < 1 else []
    chain += [hf.MinPLogitsWarper(float(min_p))] if min_p else []
    expected = logits
    for processor in chain:
        expected = processor(None, expected)
    got = run(weights_of(logits / temperature), top_k, top_p, min_p)
    torch.testing.assert_close(got / got.sum(-1, keepdim=True), expected.softmax(-1), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("vocab", [2, 31, 64, 1000, 49152])
def test_argmax_takes_the_first_of_equals(vocab):
    torch.manual_seed(0)
    logits = torch.randn(4, vocab).round()  # plenty of ties
    logits[1] = 0.0
    expected = [row.tolist().index(row.max().item()) for row in logits]
    assert argmax_tokens(logits).tolist() == expected


@pytest.mark.parametrize("vocab", [2, 31, 64, 1000, 49152])
def test_inverse_cdf_is_the_running_sum(vocab):
    torch.manual_seed(0)
    weights = torch.rand(200, vocab) * (torch.rand(200, vocab) > 0.7)
    weights[:, 1] = 1.0
    coin = torch.rand(200, dtype=torch.float64)
    got = inverse_cdf(weights, coin)
    edges = weights.double().cumsum(-1) / weights.double().sum(-1, keepdim=True)
    index = got.unsqueeze(1)
    high = edges.gather(1, index).squeeze(1)
    low = high - (weights.double() / weights.double().sum(-1, keepdim=True)).gather(1, index).squeeze(1)
    assert (weights.gather(1, index) > 0).all()
    assert (coin > low - 1e-6).all()
    assert (coin < high + 1e-6).all()


@pytest.mark.parametrize("vocab", [4, 512])
def test_a_coin_on_an_edge_belongs_to_the_next_token(vocab):
    weights = torch.zeros(3, vocab)
    weights[:, [0, 3]] = 1.0
    coin = torch.tensor([0.5 - 2.0**-40, 0.5, 0.5 + 2.0**-40], dtype=torch.float64)
    assert inverse_cdf(weights, coin).tolist() == [0, 3, 3]


@pytest.mark.parametrize("vocab", [5, 64, 512, 1000])
@pytest.mark.parametrize("coin", [2.0**-53, 1 - 2.0**-53])
@pytest.mark.parametrize("place", ["first", "last", "middle"])
def test_extreme_coins_never_hit_a_token_of_weight_zero(vocab, coin, place):
    weights = torch.zeros(1, vocab)
    only = {"first": 0, "last": vocab - 1, "middle": vocab // 2}[place]
    weights[0, only] = 1.0
    assert inverse_cdf(weights, torch.tensor([coin], dtype=torch.float64)).item() == only


@pytest.mark.parametrize("vocab", [500, 49152])
def test_row_sums_do_not_depend_on_the_batch(vocab):
    torch.manual_seed(0)
    values = torch.rand(16, vocab)
    alone = torch.cat([sum_rows(values[r : r + 1]) for r in range(16)])
    assert torch.equal(sum_rows(values), alone)
