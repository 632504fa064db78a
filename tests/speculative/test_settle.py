"""Runs cut, entered into the table and packed for the host; what a step gathers before its layers. Triton
kernels against torch, and torch against loops."""

from __future__ import annotations

import os
import random

import pytest
import torch
from tree_cases import CUDA, VOCAB, devices, random_ends, random_tree, tokens_of, widths

if not CUDA:
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is first imported

from dataclasses import replace

from engine.batch import DraftTree, Finish
from speculative.accept import Accepted, Ledger, Settled
from speculative.ops import DraftOps, Standing, TorchDraftOps, draft_ops
from speculative.tree import chain

POSITIONS = 64


def both() -> tuple[DraftOps, DraftOps]:
    return draft_ops("triton"), TorchDraftOps()


def ledger_of(rows: int, device: str, seed: int = 0) -> Ledger:
    gen = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (rows, POSITIONS), generator=gen, dtype=torch.int32)
    lens = torch.randint(1, 30, (rows,), generator=gen, dtype=torch.int32)
    lens[0] = 0
    return Ledger(tokens.to(device), lens.to(device))


def copies(ledger: Ledger) -> Ledger:
    return Ledger(ledger.tokens.clone(), ledger.seq_lens.clone())


def known(ledger: Ledger, rows: torch.Tensor) -> list[list[int]]:
    """What each row knows: its tokens with KV and the one behind them."""
    lens = ledger.seq_lens.tolist()
    return [ledger.tokens[r, : lens[r] + 1].tolist() for r in rows.tolist() if r]


def same(ours: Settled, theirs: Settled, width: int) -> None:
    for name in ("count", "finish"):
        got, expected = getattr(ours, name), getattr(theirs, name)
        assert got.dtype == torch.int32
        assert torch.equal(got, expected), name
    assert ours.packed.dtype == torch.int32
    assert ours.packed.shape == theirs.packed.shape
    assert torch.equal(ours.packed[:, width:], theirs.packed[:, width:])
    inside = torch.arange(width, device=ours.count.device) < ours.count.unsqueeze(1)
    assert torch.equal(ours.packed[:, :width][inside], theirs.packed[:, :width][inside])
    assert torch.equal(ours.taken.n_accepted, theirs.taken.n_accepted)


@devices
@widths
@pytest.mark.parametrize("batch", [0, 1, 60])
def test_settle(device: str, width: int, batch: int) -> None:
    ops, reference = both()
    tree = random_tree(batch, width, device, seed=width)
    tree = replace(tree, signal=torch.arange(batch, dtype=torch.int32, device=device))
    target = tokens_of(batch, width, device, seed=7)
    _, rows, columns = random_ends(batch, width, device, seed=9)
    mine = ledger_of(batch + 3, device)
    theirs = copies(mine)
    start = mine.seq_lens[rows]
    one, two = (
        x.settle(tree, target, start, rows, columns, where) for x, where in ((ops, mine), (reference, theirs))
    )
    same(one, two, width)
    assert torch.equal(one.taken.accept_index, two.taken.accept_index)
    assert torch.equal(mine.seq_lens, theirs.seq_lens)
    assert int(mine.seq_lens[0]) == 0
    assert known(mine, rows) == known(theirs, rows)


@devices
@pytest.mark.parametrize("width", [1, 3, 16])
@pytest.mark.parametrize("drafts", [False, True])
def test_enter_a_run_that_was_accepted_otherwise(device: str, width: int, drafts: bool) -> None:
    ops, reference = both()
    rng = random.Random(width)
    batch = 70
    emitted = tokens_of(batch, width, device, seed=5)
    accepted = [rng.randrange(width) for _ in range(batch)]
    taken = Accepted(emitted, torch.tensor(accepted, dtype=torch.int32, device=device), emitted)
    tree = random_tree(batch, width, device, seed=3) if drafts else None
    _, rows, columns = random_ends(batch, width, device, seed=6)
    mine = ledger_of(batch + 3, device)
    theirs = copies(mine)
    start = mine.seq_lens[rows]
    one = ops.enter(taken, tree, start, rows, columns, mine)
    two = reference.enter(taken, tree, start, rows, columns, theirs)
    same(one, two, width)
    assert known(mine, rows) == known(theirs, rows)
    assert torch.equal(mine.seq_lens, theirs.seq_lens)


@devices
def test_the_packed_row_by_hand(device: str) -> None:
    """Row 1 accepts its two drafts and emits three tokens; row 2 ends at a stop id; row 0 is padding."""
    tree = chain(torch.tensor([[0, 1, 2], [0, 1, 1], [0, 1, 2]], dtype=torch.int32, device=device))
    parent = tree.parent.clone()
    parent[1, 2] = -2
    tree = DraftTree(tree.tokens, parent, torch.tensor([7, 8, 9], dtype=torch.int32, device=device))
    target = torch.tensor([[1, 2, 3], [1, 3, 0], [1, 2, 3]], dtype=torch.int32, device=device)
    rows = torch.tensor([1, 2, 0], device=device)
    _, _, columns = random_ends(0, 3, device, seed=0)
    columns.stop_ids = torch.tensor([[-1], [-1], [3]], dtype=torch.int32, device=device)
    columns.min_len = torch.zeros(3, dtype=torch.int32, device=device)
    columns.max_len = torch.full((3,), 99, dtype=torch.int32, device=device)
    for ops in both():
        ledger = Ledger(
            torch.zeros(3, POSITIONS, dtype=torch.int32, device=device),
            torch.tensor([0, 10, 20], dtype=torch.int32, device=device),
        )
        settled = ops.settle(tree, target, ledger.seq_lens[rows], rows, columns, ledger)
        assert settled.packed[0].tolist() == [1, 2, 3, 3, Finish.NONE, 2, 2, 7]
        assert settled.packed[1].tolist()[:2] == [1, 3]
        assert settled.packed[1].tolist()[3:] == [2, Finish.STOP, 1, 1, 8]
        assert ledger.seq_lens.tolist() == [0, 13, 22]
        assert ledger.tokens[1, 11:14].tolist() == [1, 2, 3]
        assert ledger.tokens[2, 21:23].tolist() == [1, 3]


@devices
def test_without_a_ledger_nothing_is_entered(device: str) -> None:
    tree, target = random_tree(4, 3, device, seed=1), tokens_of(4, 3, device, seed=2)
    start, rows, columns = random_ends(4, 3, device, seed=3)
    settled = [ops.settle(tree, target, start, rows, columns, None) for ops in both()]
    same(settled[0], settled[1], 3)


@devices
@pytest.mark.parametrize("batch", [0, 1, 5, 200])
def test_opening(device: str, batch: int) -> None:
    ops, reference = both()
    ledger = ledger_of(300, device)
    rows = torch.randperm(300, generator=torch.Generator().manual_seed(0))[:batch].to(device)
    for got, expected in zip(ops.opening(rows, ledger), reference.opening(rows, ledger), strict=True):
        assert got.dtype == expected.dtype == torch.int32
        assert torch.equal(got, expected)
    lens, last = reference.opening(rows, ledger)
    for i, row in enumerate(rows.tolist()):
        assert int(lens[i]) == int(ledger.seq_lens[row])
        assert int(last[i]) == int(ledger.tokens[row, int(lens[i])])


@devices
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("width", [1, 3, 8])
@pytest.mark.parametrize("tree_mask", [False, True])
@pytest.mark.parametrize("batch", [0, 1, 9])
def test_node_inputs(device: str, page_size: int, width: int, tree_mask: bool, batch: int) -> None:
    ops, reference = both()
    tree = random_tree(batch, width, device, 4) if tree_mask else chain(tokens_of(batch, width, device, 4))
    gen = torch.Generator().manual_seed(2)
    pages = torch.randint(1, 99, (batch + 2, POSITIONS // page_size), generator=gen, dtype=torch.int32)
    pages[0] = 0
    pages = pages.to(device)
    rows = torch.arange(batch, device=device)  # the first is padding
    start = torch.randint(0, 40, (batch,), generator=gen, dtype=torch.int32).to(device)
    made = [
        x.node_inputs(tree, x.geometry(tree, tree_mask), Standing(rows, start, pages, page_size))
        for x in (ops, reference)
    ]
    depth = reference.geometry(tree, tree_mask).depth.tolist()
    for inputs in made:
        values = [t.view(batch, width).tolist() for t in (inputs.ids, inputs.positions, inputs.slots)]
        assert {t.dtype for t in (inputs.ids, inputs.positions, inputs.slots)} == {torch.int64}
        for b in range(batch):
            first = int(start[b])
            assert values[0][b] == tree.tokens[b].tolist()
            assert values[1][b] == [first + d for d in depth[b]]
            assert values[2][b] == [
                int(pages[b, (first + i) // page_size]) * page_size + (first + i) % page_size
                for i in range(width)
            ]


@devices
@pytest.mark.parametrize("vocab", [5, 300, 16_384, 50_257])
@pytest.mark.parametrize("rows", [0, 1, 6, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_best(device: str, vocab: int, rows: int, dtype: torch.dtype) -> None:
    """In bf16 most rows have equals."""
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)).to(device, dtype)
    if rows:
        logits[0, [1, vocab // 2, vocab - 1]] = 9.0  # the first of equals
        logits[-1] = float("-inf")
        logits[-1, vocab - 1] = -1e30
    for ops in both():
        got = ops.best(logits)
        assert got.dtype == torch.int32
        assert got.tolist() == logits.float().cpu().numpy().argmax(1).tolist()
