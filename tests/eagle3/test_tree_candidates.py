"""Which candidates become the tree: against a plain search over tuples, ties and broken scores included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.batch import ROOT
from speculative.eagle3.candidates import Candidates, best_of, first_level, keep, next_level
from speculative.tree import geometry


def levels(logprobs: list[Tensor], topk: int) -> Candidates:
    """Expand as a drafter does; every candidate's token is its own index."""
    batch = len(logprobs[0])

    def tokens(first: int, count: int) -> Tensor:
        return torch.arange(first, first + count, dtype=torch.int32).expand(batch, count)

    found = first_level(tokens(0, topk), logprobs[0])
    survivors = torch.arange(topk).expand(batch, topk)
    for values in logprobs[1:]:
        start = found.tokens.shape[1]
        found = next_level(
            found,
            survivors,
            tokens(start, topk * topk).view(batch, topk, topk),
            values.view(batch, topk, topk),
        )
        survivors = start + best_of(found.scores[:, start:], topk)
    return found


def logs(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities]).log()


def test_the_worked_example() -> None:
    """K = 2, three levels, candidates 0, 1 | 2..5 | 6..9; {0, 1, 2, 4, 6} are kept."""
    found = levels([logs(0.6, 0.3), logs(0.7, 0.1, 0.8, 0.1), logs(0.6, 0.1, 0.2, 0.1)], 2)
    assert found.parent.tolist() == [[ROOT, ROOT, 0, 0, 1, 1, 2, 2, 4, 4]]
    tree = keep(found, torch.tensor([77], dtype=torch.int32), 5)
    assert tree.tokens.tolist() == [[77, 0, 1, 2, 4, 6]]
    assert tree.parent.tolist() == [[ROOT, 0, 0, 1, 2, 3]]
    assert geometry(tree).depth.tolist() == [[0, 1, 1, 2, 2, 3]]


def by_hand(found: Candidates, row: int, count: int) -> list[tuple[int, int]]:
    """(candidate, its parent) of the kept, from sorted tuples."""
    scores, parent = found.scores[row].tolist(), found.parent[row].tolist()
    kept = sorted(sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:count])
    return [(i, parent[i]) for i in kept]


@pytest.mark.parametrize("kind", ["random", "ties", "certain", "impossible"])
@pytest.mark.parametrize(
    ("topk", "steps", "count"), [(2, 3, 5), (3, 3, 8), (4, 5, 20), (4, 2, 20), (8, 1, 8)]
)
def test_kept_sets_are_the_best_and_closed_under_parents(
    topk: int, steps: int, count: int, kind: str
) -> None:
    torch.manual_seed(topk * 100 + steps)
    sizes = [topk, *[topk * topk] * (steps - 1)]
    logprobs = [torch.randn(6, size).abs().neg() for size in sizes]
    if kind == "ties":
        logprobs = [values.round() for values in logprobs]
    if kind == "certain":  # a child as probable as its parent
        logprobs = [torch.zeros_like(values) for values in logprobs]
    if kind == "impossible":
        logprobs = [torch.where(values < -1, float("nan"), values) for values in logprobs]
    found = levels(logprobs, topk)
    tree = keep(found, torch.full((6,), 999, dtype=torch.int32), count)
    for row in range(6):
        expected = by_hand(found, row, count)
        node = {candidate: i + 1 for i, (candidate, _) in enumerate(expected)}
        assert tree.tokens[row].tolist() == [999, *node]
        assert tree.parent[row].tolist() == [ROOT, *(node.get(above, 0) for _, above in expected)]
        assert all(above == ROOT or above in node for _, above in expected), "closed under parents"
        assert all(parent < i for i, parent in enumerate(tree.parent[row].tolist())), "parents come first"


def test_a_probability_that_rounding_lifted_above_one_does_not_outrank_its_parent() -> None:
    found = levels([logs(0.5, 0.4), torch.tensor([[1e-7, -3.0, -3.0, -3.0]])], 2)
    assert float(found.scores[0, 2]) == float(found.scores[0, 0])
    assert keep(found, torch.tensor([9], dtype=torch.int32), 1).tokens.tolist() == [[9, 0]]
