"""The ratio test of sampled drafts against plain Python and against exact distributions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from ratio_cases import VOCAB, Rule, case, joint_counts, p_value, tables
from torch import Tensor

from engine.batch import DraftTree
from speculative.accept import Accepted
from speculative.ratio import accept_ratio, draw_token, residual


def walk(
    tokens: list[int], parent: list[int], q: Tensor, p: Tensor, accept: Tensor, draw: Tensor
) -> list[int]:
    """What one request emits, draft by draft."""
    emitted: list[int] = []
    for node in range(len(tokens)):
        here = p[node].double()
        if node + 1 < len(tokens) and parent[node + 1] == node:
            x = tokens[node + 1]
            if q[node, x] > 0 and accept[node] < min(1.0, (here[x] / q[node, x].double()).item()):
                emitted.append(x)
                continue
            left = (here - q[node].double()).clamp_min(0)
            here = left if left.sum() > 0 else here
        edges = np.cumsum(here.numpy())
        return [*emitted, int(np.searchsorted(edges, draw[node].item() * edges[-1], side="right"))]
    raise AssertionError("the last node has no child")


@pytest.mark.parametrize("width", [1, 2, 5, 16])
@pytest.mark.parametrize("vocab", [2, VOCAB, 300])
def test_the_walk_equals_plain_python(width: int, vocab: int) -> None:
    tree, p, accept, draw = case(200, width, vocab, seed=width)
    assert tree.probs is not None
    got = accept_ratio(tree, p, accept, draw)
    for b in range(200):
        args = (tree.tokens[b].tolist(), tree.parent[b].tolist(), tree.probs[b], p[b], accept[b], draw[b])
        emitted = walk(*args)
        n = len(emitted) - 1
        assert got.n_accepted[b].item() == n
        assert got.emitted[b, : n + 1].tolist() == emitted
        assert got.accept_index[b].tolist() == [*range(n + 1), *[-1] * (width - n - 1)]
    assert got.n_accepted.dtype == got.emitted.dtype == got.accept_index.dtype == torch.int32
    assert width == 1 or len(set(got.n_accepted.tolist())) >= 2


def test_p6_the_residual_is_normalised_not_soft_maxed() -> None:
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
    assert residual(p, q).tolist() == [1.0, 0.0, 0.0]
    half = residual(torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.125, 0.625]))
    assert half.tolist() == pytest.approx([2 / 3, 1 / 3, 0.0])


def test_rounding_never_chooses_a_token_of_weight_zero() -> None:
    weights = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0, 0.0]], dtype=torch.float64)
    for coin, token in ((1e-300, 1), (0.3 - 1e-9, 1), (0.3 + 1e-9, 3), (1 - 2**-53, 3), (1.0, 3)):
        assert draw_token(weights, torch.tensor([coin], dtype=torch.float64)).tolist() == [token]


@pytest.mark.parametrize(("temperature", "cut"), [(0.3, 0.0), (1.0, 0.0), (1.5, 0.0), (1.0, 0.08)])
def test_l5_p7_three_tokens_follow_the_exact_joint_distribution(temperature: float, cut: float) -> None:
    p, q = tables(temperature, cut)
    assert p_value(joint_counts(accept_ratio, p, q, 200_000, "cpu"), p) > 1e-3


def fresh_draw(tree: DraftTree, p: Tensor, accept: Tensor, draw: Tensor) -> Accepted:
    """Wrong: after a rejection a draw from p, not from the residual."""
    right = accept_ratio(tree, p, accept, draw)
    at = right.n_accepted.long()
    here = p[torch.arange(len(at)), at].double()
    emitted = right.emitted.scatter(1, at.unsqueeze(1), draw_token(here, draw[:, 0]).int().unsqueeze(1))
    return replace(right, emitted=emitted)


def wrong_q(tree: DraftTree, p: Tensor, accept: Tensor, draw: Tensor) -> Accepted:
    """Wrong: the test takes the drafts for uniform draws."""
    assert tree.probs is not None
    return accept_ratio(replace(tree, probs=torch.full_like(tree.probs, 1 / VOCAB)), p, accept, draw)


@pytest.mark.parametrize("rule", [fresh_draw, wrong_q])
def test_p7_wrong_rules_are_caught(rule: Rule) -> None:
    p, q = tables()
    assert p_value(joint_counts(rule, p, q, 200_000, "cpu"), p) < 1e-6
