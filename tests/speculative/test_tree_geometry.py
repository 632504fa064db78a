"""Tree geometry against a plain walk over parents."""

import random

import pytest
import torch

from engine.batch import ABSENT, ROOT, DraftTree
from speculative.tree import chain, geometry, is_child

WIDTHS = (1, 2, 3, 5, 8, 9, 16)


def random_parents(width: int, rng: random.Random, absent: float) -> list[int]:
    """Parents come first; nothing hangs below an absent node."""
    parents = [ROOT]
    for node in range(1, width):
        present = [n for n in range(node) if parents[n] != ABSENT]
        parents.append(ABSENT if rng.random() < absent else rng.choice(present))
    return parents


def path(parents: list[int], node: int) -> list[int]:
    """Nodes from the root to `node`."""
    nodes = [node]
    while parents[nodes[0]] >= 0:
        nodes.insert(0, parents[nodes[0]])
    return nodes


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("absent", [0.0, 0.3, 1.0])
def test_depth_mask_and_paths_follow_the_parents(width, absent):
    rng = random.Random(width)
    parents = [random_parents(width, rng, absent) for _ in range(12)]
    tokens = [[rng.randrange(50) for _ in range(width)] for _ in parents]
    got = geometry(DraftTree(torch.tensor(tokens).int(), torch.tensor(parents).int()))
    ancestors = got.ancestors.view(len(parents), width, width - 1)
    for b, own in enumerate(parents):
        for node in range(width):
            if own[node] == ABSENT:
                assert got.mask[b, node].nonzero().flatten().tolist() == [node]
                continue
            nodes = path(own, node)
            assert got.depth[b, node].item() == len(nodes) - 1
            assert got.mask[b, node].nonzero().flatten().tolist() == sorted(nodes)
            drafted = [tokens[b][n] for n in nodes[1:]]
            assert ancestors[b, node].tolist() == drafted + [-1] * (width - 1 - len(drafted))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_chain_is_the_same_with_and_without_a_mask(width):
    torch.manual_seed(0)
    tree = chain(torch.randint(0, 90, (3, width), dtype=torch.int32))
    quick, full = geometry(tree, needs_mask=False), geometry(tree, needs_mask=True)
    assert tree.parent[0].tolist() == list(range(-1, width - 1))
    assert quick.mask is None
    assert torch.equal(quick.depth, full.depth)
    assert torch.equal(quick.ancestors, full.ancestors)
    assert torch.equal(full.mask, torch.ones(3, width, width, dtype=torch.bool).tril())


@pytest.mark.parametrize("width", WIDTHS)
def test_children_are_the_nodes_that_name_the_parent(width):
    rng = random.Random(width)
    parents = [random_parents(width, rng, 0.3) for _ in range(6)]
    got = is_child(torch.tensor(parents).int())
    expected = [[[own[j] == i for j in range(width)] for i in range(width)] for own in parents]
    assert got.tolist() == expected


def test_an_empty_batch_works():
    got = geometry(chain(torch.empty(0, 4, dtype=torch.int32)))
    assert got.mask.shape == (0, 4, 4)
    assert got.ancestors.shape == (0, 3)
