"""The counter-based generator: known vectors, uniformity (field report P18), independence of streams."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from engine.params import sample_key
from engine.sampling.rng import (
    PURPOSE_ACCEPT,
    PURPOSE_DRAFT,
    PURPOSE_RESIDUAL,
    PURPOSE_TOKEN,
    uniform,
)

MASK = (1 << 64) - 1


def splitmix64(key: int, position: int, purpose: int = 0) -> int:
    """An independent scalar SplitMix64 in Python integers."""
    state = (key & MASK) ^ (purpose * 0xBF58476D1CE4E5B9 & MASK)
    z = (state + (position + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def test_reference_gives_the_published_stream():
    assert [splitmix64(1234567, i) for i in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@pytest.mark.parametrize("purpose", [0, 1, 5])
def test_equals_the_scalar_reference_to_the_bit(purpose):
    rng = np.random.default_rng(purpose)
    keys = [0, MASK, 1 << 63, (1 << 63) - 1, *rng.integers(0, MASK, 60, dtype=np.uint64).tolist()]
    positions = [0, 1, 131071, (1 << 31) - 1, *rng.integers(0, 1 << 31, 60).tolist()]
    got = uniform(torch.tensor([signed(k) for k in keys]), torch.tensor(positions), purpose)
    expected = [
        ((splitmix64(k, p, purpose) >> 12) + 0.5) / 2.0**52 for k, p in zip(keys, positions, strict=True)
    ]
    assert got.tolist() == expected


def keys_of(seeds: range) -> torch.Tensor:
    return torch.tensor([signed(sample_key(seed, 0)) for seed in seeds])


STREAMS = {
    "one seed, many positions": lambda: uniform(keys_of(range(1)).expand(20000), torch.arange(20000)),
    "many seeds, one position": lambda: uniform(keys_of(range(20000)), torch.full((20000,), 17)),
    "another purpose": lambda: uniform(keys_of(range(20000)), torch.full((20000,), 17), 1),
    "many samples of one seed": lambda: uniform(
        torch.tensor([signed(sample_key(1, i)) for i in range(20000)]), torch.zeros(20000, dtype=torch.int64)
    ),
}


@pytest.mark.parametrize("name", STREAMS)
def test_uniform_by_kolmogorov_smirnov(name):
    values = STREAMS[name]().numpy()
    assert values.min() > 0.0
    assert values.max() < 1.0
    assert stats.kstest(values, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("lag", [1, 2, 7])
def test_neighbours_are_uncorrelated(lag):
    position = torch.arange(20000)
    along = uniform(keys_of(range(1)).expand(20000), position).numpy()
    across = uniform(keys_of(range(20000)), torch.full((20000,), 3)).numpy()
    for values in (along, across):
        assert abs(np.corrcoef(values[:-lag], values[lag:])[0, 1]) < 0.03


def test_purposes_and_positions_give_different_numbers():
    keys = keys_of(range(500))
    at = torch.full((500,), 9)
    draws = torch.stack(
        [uniform(keys, at), uniform(keys, at + 1), uniform(keys, at, 1), uniform(keys, at, 2)]
    )
    assert len(torch.unique(draws)) == draws.numel()


def unmix64(z: int) -> int:
    """The state that SplitMix64's finaliser maps to z."""
    z ^= z >> 31 ^ z >> 62
    z = z * pow(0x94D049BB133111EB, -1, 1 << 64) & MASK
    z ^= z >> 27 ^ z >> 54
    z = z * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & MASK
    return z ^ z >> 30 ^ z >> 60


@pytest.mark.parametrize("hash_value", [0, MASK])
def test_the_extreme_hashes_stay_inside_the_open_interval(hash_value):
    key = (unmix64(hash_value) - 0x9E3779B97F4A7C15) & MASK
    assert splitmix64(key, 0) == hash_value
    value = uniform(torch.tensor([signed(key)]), torch.tensor([0])).item()
    assert 0.0 < value < 1.0
    assert (value < 0.5) == (hash_value == 0)


PURPOSES = (PURPOSE_TOKEN, PURPOSE_DRAFT, PURPOSE_ACCEPT, PURPOSE_RESIDUAL)


def coins_of(purpose: int) -> np.ndarray:
    """One seed in a hundred positions, a thousand times."""
    keys = keys_of(range(1000)).repeat_interleave(100)
    return uniform(keys, torch.arange(100).repeat(1000), purpose).numpy()


@pytest.mark.parametrize("purpose", PURPOSES)
def test_p18_the_coins_of_every_purpose_are_uniform(purpose):
    assert stats.kstest(coins_of(purpose), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(PURPOSES, 2)))
def test_the_coins_of_two_purposes_are_independent(one, other, lag):
    """At one position, and at the next: a 10 x 10 table of both."""
    a, b = coins_of(one)[: -lag or None], coins_of(other)[lag:]
    seen, *_ = np.histogram2d(a, b, bins=10, range=[[0, 1], [0, 1]])
    assert stats.chisquare(seen.ravel()).pvalue > 1e-3
