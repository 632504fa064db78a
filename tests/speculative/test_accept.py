"""The acceptance walk and the trim against plain Python, and the reported mistakes around them."""

import random
from types import SimpleNamespace

import pytest
import torch

from engine.batch import ABSENT, ROOT, DraftTree, Finish
from speculative.accept import accept, trim
from speculative.tree import chain


def walk(tokens: list[int], parents: list[int], target: list[int]) -> tuple[list[int], list[int]]:
    """(path, emitted) of one request, node by node."""
    path, emitted = [0], [target[0]]
    while True:
        here = path[-1]
        children = [n for n in range(len(parents)) if parents[n] == here and tokens[n] == target[here]]
        if not children:
            return path, emitted
        path.append(children[0])
        emitted.append(target[children[0]])


def random_case(rng: random.Random, width: int) -> tuple[list[int], list[int], list[int]]:
    vocab = rng.choice([1, 2, 3, 10])  # few tokens: siblings repeat each other
    parents = [ROOT]
    for node in range(1, width):
        kind = rng.random()
        parents.append(ABSENT if kind < 0.25 else node - 1 if kind < 0.6 else rng.randrange(node))
    tokens = [rng.randrange(vocab) for _ in range(width)]
    return tokens, parents, [rng.randrange(vocab) for _ in range(width)]


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 16])
def test_the_walk_equals_plain_python_on_random_trees(width):
    rng = random.Random(width)
    cases = [random_case(rng, width) for _ in range(300)]
    tokens, parents, target = (torch.tensor(part).int() for part in zip(*cases, strict=True))
    got = accept(DraftTree(tokens, parents), target)
    for b, case in enumerate(cases):
        path, emitted = walk(*case)
        n = got.n_accepted[b].item()
        assert n == len(path) - 1
        assert got.accept_index[b].tolist() == path + [-1] * (width - len(path))
        assert got.emitted[b, : n + 1].tolist() == emitted
    assert got.n_accepted.dtype == got.emitted.dtype == got.accept_index.dtype == torch.int32


@pytest.mark.parametrize("right", range(5))
def test_a_chain_is_accepted_up_to_its_first_mistake(right):
    tree = chain(torch.tensor([[7, 1, 2, 3, 4]]).int())
    target = [1, 2, 3, 4, 5]
    target[right] = 9
    got = accept(tree, torch.tensor([target]).int())
    assert got.n_accepted.tolist() == [right]
    assert got.emitted[0, : right + 1].tolist() == [*[1, 2, 3, 4, 5][:right], 9]


def test_l11_nothing_accepted_emits_the_one_token_of_the_root():
    tree = chain(torch.full((3, 4), 8, dtype=torch.int32))
    got = accept(tree, torch.tensor([[5, 1, 1, 1], [6, 1, 1, 1], [7, 1, 1, 1]]).int())
    assert got.n_accepted.tolist() == [0, 0, 0]
    assert got.accept_index.tolist() == [[0, -1, -1, -1]] * 3
    assert got.emitted[:, 0].tolist() == [5, 6, 7]


def test_absent_nodes_are_never_entered():
    tokens = torch.tensor([[4, 5, 5, 5]]).int()
    target = torch.full((1, 4), 5, dtype=torch.int32)
    for parents, path in (([-1, -2, -2, -2], [0]), ([-1, -2, 0, -2], [0, 2]), ([-1, -2, 0, 1], [0, 2])):
        got = accept(DraftTree(tokens, torch.tensor([parents]).int()), target)
        assert got.accept_index[0, : len(path)].tolist() == path
        assert got.n_accepted.tolist() == [len(path) - 1]


def ends(stop_ids=(), min_len=0, max_len=10**6) -> SimpleNamespace:
    """Columns of rows 0 (padding) and 1."""
    padded = [*stop_ids, *[-1] * (4 - len(stop_ids))]
    return SimpleNamespace(
        stop_ids=torch.tensor([[-1] * 4, padded]).int(),
        min_len=torch.tensor([0, min_len]).int(),
        max_len=torch.tensor([2**31 - 1, max_len]).int(),
    )


def trim_one(run: list[int], columns: SimpleNamespace, seq_len: int = 9, n: int | None = None):
    count = torch.tensor([len(run) if n is None else n]).int()
    got = trim(torch.tensor([run]).int(), count, torch.tensor([seq_len]).int(), torch.tensor([1]), columns)
    return got[0].item(), Finish(got[1].item())


STOP = 99


def test_e2_the_earliest_end_wins():
    block = [10, 11, STOP, 20, 21, 22]
    assert trim_one(block, ends([STOP], max_len=10 + 5)) == (3, Finish.STOP)
    assert trim_one(block, ends([STOP], max_len=10 + 2)) == (2, Finish.LENGTH)
    assert trim_one(block, ends([STOP], max_len=10 + 3)) == (3, Finish.STOP)  # both at one index: stop
    assert trim_one(block, ends([STOP], max_len=10 + 6), n=2) == (2, Finish.NONE)


def test_e4_nothing_after_the_end_of_sequence_is_committed():
    tree = chain(torch.tensor([[1, STOP, 7, 8]]).int())
    taken = accept(tree, torch.tensor([[STOP, 7, 8, 9]]).int())
    assert taken.n_accepted.item() == 3
    n, finish = trim(
        taken.emitted, taken.n_accepted + 1, torch.tensor([4]).int(), torch.tensor([1]), ends([STOP])
    )
    assert (n.item(), finish.item()) == (1, Finish.STOP)


def end_of(run: list[int], n: int, seq_len: int, stops: set[int], min_len: int, max_len: int):
    """The trim of one request, token by token."""
    known = seq_len + 1
    for index, token in enumerate(run[:n]):
        position = known + index
        if token in stops and position >= min_len:
            return index + 1, Finish.STOP
        if position + 1 >= max_len:
            return index + 1, Finish.LENGTH
    return n, Finish.NONE


@pytest.mark.parametrize("width", [1, 2, 5, 16])
def test_trim_equals_plain_python(width):
    rng = random.Random(width)
    for _ in range(200):
        run = [rng.randrange(6) for _ in range(width)]
        n, seq_len = rng.randint(1, width), rng.randrange(20)
        stops = set(rng.sample(range(6), rng.randrange(3)))
        min_len, max_len = seq_len + rng.randint(-2, width + 3), seq_len + rng.randint(1, width + 4)
        expected = end_of(run, n, seq_len, stops, min_len, max_len)
        assert trim_one(run, ends(tuple(stops), min_len, max_len), seq_len, n) == expected


def test_the_padding_row_never_ends():
    rows = torch.tensor([0, 1, 0])
    lens = torch.zeros(3, dtype=torch.int32)
    for width in (1, 3):
        run = torch.full((3, width), STOP, dtype=torch.int32)
        _, finish = trim(run, torch.ones(3).int(), lens, rows, ends([STOP]))
        assert finish.tolist() == [Finish.NONE, Finish.STOP, Finish.NONE]


def test_a_late_step_past_the_end_stays_in_range():
    assert trim_one([3, 4], ends([STOP], max_len=5), seq_len=30) == (1, Finish.LENGTH)
    assert trim_one([3], ends([STOP], max_len=5), seq_len=30) == (1, Finish.LENGTH)


@pytest.mark.parametrize("width", [1, 3])
def test_an_empty_batch_works(width):
    none = torch.empty(0, dtype=torch.int32)
    taken = accept(chain(torch.empty(0, width, dtype=torch.int32)), torch.empty(0, width, dtype=torch.int32))
    n, finish = trim(taken.emitted, taken.n_accepted + 1, none, none.long(), ends([STOP]))
    assert n.shape == finish.shape == (0,)
