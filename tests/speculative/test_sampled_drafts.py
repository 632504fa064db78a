"""Drafts that are drawn: the distribution that comes with them is the one they were drawn from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from toy_target import CPU

from engine.params import sample_key
from engine.sampling.asked import SamplingRow
from engine.sampling.columns import SamplingColumns, pack_rows
from engine.sampling.draws import draws_of
from engine.sampling.rng import PURPOSE_DRAFT, uniform
from speculative.sampled import draw_drafts, sampled_chain

LOGITS = torch.tensor([0.3, -1.0, 2.0, 0.0, -0.5])
IDS = torch.tensor([1, 2, 5, 6, 9])


def coins(count: int) -> torch.Tensor:
    return uniform(torch.arange(count) * 0x9E3779B9, torch.zeros(count, dtype=torch.int64), PURPOSE_DRAFT)


@pytest.mark.parametrize("ids", [None, IDS])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.5])
def test_drafts_follow_the_distribution_they_bring(temperature: float, ids: torch.Tensor | None) -> None:
    count, vocab = 40_000, 5 if ids is None else 11
    tokens, q = draw_drafts(
        LOGITS.expand(count, -1), torch.full((count,), temperature), coins(count), ids, vocab
    )
    share = (LOGITS.double() / temperature).softmax(-1)
    expected = torch.zeros(vocab, dtype=torch.float64)
    expected[torch.arange(5) if ids is None else ids] = share
    assert q.shape == (count, vocab)
    assert torch.allclose(q[17].double(), expected, atol=1e-6)
    counts = np.bincount(tokens.numpy(), minlength=vocab)
    assert counts[expected.numpy() == 0].sum() == 0
    able = expected.numpy() > 0
    assert stats.chisquare(counts[able], expected.numpy()[able] * count).pvalue > 1e-3


def test_a_greedy_row_is_certain_of_its_best_token() -> None:
    logits = torch.stack((LOGITS, LOGITS, -LOGITS))
    tokens, q = draw_drafts(
        logits, torch.tensor([0.0, 1.0, 0.0]), torch.tensor([0.999, 0.5, 0.001]).double(), IDS, 11
    )
    assert tokens[[0, 2]].tolist() == [5, 2]
    assert q[0].tolist() == torch.nn.functional.one_hot(torch.tensor(5), 11).tolist()
    assert q[2, 2] == 1
    assert q[1].count_nonzero() == 5


@pytest.mark.parametrize("coin", [2.0**-53, 1 - 2.0**-53])
def test_the_extreme_coins_choose_possible_tokens(coin: float) -> None:
    """Weights that underflow to zero stand at both ends."""
    logits = torch.tensor([[-500.0, 1.0, 0.5, -500.0]])
    tokens, q = draw_drafts(logits, torch.ones(1), torch.tensor([coin], dtype=torch.float64), None, 4)
    assert q[0, tokens[0].item()] > 0
    assert tokens.tolist() == [1 if coin < 0.5 else 2]


def test_the_chain_is_canonical_and_keeps_the_distributions_in_order() -> None:
    first, second = (torch.full((2, 4), x) for x in (0.25, 0.5))
    root, drafts = torch.tensor([7, 8]).int(), [torch.tensor([1, 2]).int(), torch.tensor([3, 0]).int()]
    tree = sampled_chain(root, drafts, [first, second])
    assert tree.tokens.tolist() == [[7, 1, 3], [8, 2, 0]]
    assert tree.parent.tolist() == [[-1, 0, 1]] * 2
    assert tree.probs is not None
    assert tree.probs[:, :, 0].tolist() == [[0.25, 0.5]] * 2


def test_the_steps_draws_are_those_of_the_rows() -> None:
    columns = SamplingColumns(4, 8, CPU, penalties=False)
    rows = [SamplingRow(temperature=t, key=sample_key(seed, 0)) for t, seed in ((0.5, 1), (0.0, 2), (1.5, 3))]
    columns.unpack_into(torch.from_numpy(pack_rows(rows)), torch.tensor([1, 2, 3]))
    draws = draws_of(columns, torch.tensor([3, 1]))
    assert draws.temperature().tolist() == [1.5, 0.5]
    at = torch.tensor([7, 9])
    assert draws.coins(at).tolist() == uniform(columns.key[[3, 1]], at, PURPOSE_DRAFT).tolist()
    assert not torch.equal(draws.coins(at), draws.coins(at + 1))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_a_broken_draft_is_drawn_from_a_distribution_all_the_same(broken: float, temperature: float) -> None:
    logits = torch.stack((torch.full((5,), broken), torch.tensor([0.0, broken, 1.0, broken, 2.0])))
    ids = torch.tensor([1, 3, 4, 6, 7])
    coins = torch.tensor([0.3, 0.999], dtype=torch.float64)
    drawn, q = draw_drafts(logits, torch.full((2,), temperature), coins, ids, 8)
    assert torch.isfinite(q).all()
    assert torch.allclose(q.sum(1), torch.ones(2))
    assert (q.gather(1, drawn.long().unsqueeze(1)) > 0).all()
