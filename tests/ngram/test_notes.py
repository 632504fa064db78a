"""The notes of found continuations: Triton's equal the torch ones, padding rows and idle batches included."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from test_history import view_of

from engine.batch import ABSENT, ROOT
from speculative.ngram.drafts import Found
from speculative.ngram.notes import TorchNotes
from speculative.ngram.signal import FIRST, MOST, STREAK, STREAK_SHIFT
from speculative.ngram.triton_lookups import TritonNotes
from speculative.views import DraftView

BATCHES = (0, 1, 7)
SHAPES = [(1, 1, 1), (2, 1, 1), (5, 1, 4), (4, 1, 7), (7, 3, 2), (6, 3, 2), (17, 4, 4)]  # width, K, D


def noted_view(batch: int, width: int, seed: int) -> DraftView:
    """Requests with known streaks, the longest there can be among them."""
    view = view_of([[3, 1, 2 + i] for i in range(batch)], slack=9)
    gen = torch.Generator().manual_seed(seed)
    rows = len(view.tokens)
    relay = {
        FIRST: torch.randint(-1, 4, (rows,), generator=gen, dtype=torch.int32),
        STREAK: torch.randint(0, 9, (rows,), generator=gen, dtype=torch.int32),
    }
    relay[STREAK][-1] = MOST
    return dataclasses.replace(view, relay=relay, width=width)


def copied(view: DraftView) -> DraftView:
    return dataclasses.replace(view, relay={name: value.clone() for name, value in view.relay.items()})


def found_of(batch: int, branches: int, depth: int, seed: int) -> Found:
    gen = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 50, (batch, branches, depth), generator=gen, dtype=torch.int32)
    tokens[torch.rand(tokens.shape, generator=gen) < 0.2] = -1
    length = torch.randint(0, 9, (batch, branches), generator=gen, dtype=torch.int32)
    return Found(length, tokens)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("width", "branches", "depth"), SHAPES)
def test_trees(width: int, branches: int, depth: int, batch: int) -> None:
    view, found = noted_view(batch, width, 1), found_of(batch, branches, depth, 2)
    other = copied(view)
    expected, mine = TorchNotes().drafted(view, found), TritonNotes().drafted(other, found)
    for name in ("tokens", "parent", "signal"):
        ours, theirs = getattr(mine, name), getattr(expected, name)
        assert ours.dtype == theirs.dtype == torch.int32
        assert torch.equal(ours, theirs), name
    assert torch.equal(other.relay[FIRST], view.relay[FIRST])


def test_a_tree_by_hand() -> None:
    view = noted_view(1, 5, 3)
    view.relay[STREAK][view.rows] = 6
    found = Found(torch.tensor([[4, 2]]).int(), torch.tensor([[[8, 9, -1], [7, -1, -1]]]).int())
    tree = TritonNotes().drafted(view, found)
    assert tree.tokens.tolist() == [[2, 8, 9, 0, 7]]
    assert tree.parent.tolist() == [[ROOT, 0, 1, ABSENT, 0]]
    assert tree.signal is not None
    assert tree.signal.tolist() == [4 + (6 << STREAK_SHIFT)]
    assert view.relay[FIRST][view.rows].tolist() == [8]


@pytest.mark.parametrize("batch", BATCHES)
def test_streaks(batch: int) -> None:
    view = noted_view(batch, 3, 4)
    other = copied(view)
    wide = torch.randint(-1, 4, (batch, 8), generator=torch.Generator().manual_seed(5), dtype=torch.int32)
    if batch:
        wide[-1, 0] = view.relay[FIRST][view.rows[-1]]
    TorchNotes().came(view, wide[:, :3])
    TritonNotes().came(other, wide[:, :3])
    assert torch.equal(other.relay[STREAK], view.relay[STREAK])
    if batch:
        assert int(view.relay[STREAK][view.rows[-1]]) > 0


def test_padding_rows_and_the_longest_streak() -> None:
    """Padding rows come several times; a streak stops at its most."""
    view = noted_view(2, 3, 6)
    rows = torch.tensor([0, int(view.rows[1]), 0])
    view = dataclasses.replace(view, rows=rows)
    view.relay[STREAK][rows[1]] = MOST
    emitted = view.relay[FIRST][rows].unsqueeze(1).repeat(1, 3)
    TritonNotes().came(view, emitted)
    assert int(view.relay[STREAK][rows[1]]) == MOST
