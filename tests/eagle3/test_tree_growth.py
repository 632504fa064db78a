"""Trees that grow by Triton kernels: the same candidates, fronts and trees as by the torch reference."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is first imported

from engine.batch import SeqLens
from speculative.eagle3.growth import Front, Growth, TorchGrowth, TreeSize
from speculative.eagle3.triton_growth import TritonGrowth
from speculative.views import DraftView

KINDS = ("random", "ties", "certain", "impossible", "broken")
FIELDS = ("survivors", "tokens", "positions", "source")


def a_view(batch: int) -> DraftView:
    """The last request is padding."""
    none = torch.zeros(1, dtype=torch.int32)
    rows = torch.tensor([*range(batch, 1, -1), 0][:batch] if batch else [], dtype=torch.int64)
    lens = torch.tensor([7 * row for row in rows.tolist()], dtype=torch.int32)
    return DraftView(none, rows, SeqLens(lens, tuple(lens.tolist())), {}, none, 1, none, 9)


def logprobs(kind: str, shape: tuple[int, ...], seed: int) -> Tensor:
    gen = torch.Generator().manual_seed(seed)
    values = -3 * torch.rand(shape, generator=gen)
    if kind == "ties":
        values = values.round()
    if kind == "certain":
        values.zero_()
    if kind == "impossible":
        values[torch.rand(shape, generator=gen) < 0.5] = float("-inf")
    if kind == "broken":
        odd = torch.tensor([float("nan"), float("inf"), float("-inf"), 1e-7])
        picked = torch.randint(0, 4, shape, generator=gen)
        values = torch.where(torch.rand(shape, generator=gen) < 0.4, odd[picked], values)
    return values


def tokens(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randint(0, 99, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int32)


def same(ours: object, theirs: object, *names: str) -> None:
    for name in names:
        mine, expected = getattr(ours, name), getattr(theirs, name)
        assert mine.dtype == expected.dtype, name
        assert torch.equal(mine, expected), name


@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("topk", "levels", "count"), [(2, 3, 5), (3, 4, 8), (4, 2, 20), (8, 1, 8), (5, 3, 31), (1, 3, 3)]
)
def test_growth(topk: int, levels: int, count: int, kind: str, batch: int) -> None:
    size = TreeSize(topk, levels, 1000, topk * levels)
    both: tuple[Growth, Growth] = (TritonGrowth(size), TorchGrowth(size))
    view, root = a_view(batch), torch.arange(batch, dtype=torch.int32) + 500
    start = tokens((batch, topk), 1), logprobs(kind, (batch, topk), 2)
    found = [growth.first(*start) for growth in both]
    same(*found, "tokens", "scores", "parent")
    fronts: list[Front] = []
    for level in range(levels - 1):
        windows = [front.window for front in fronts] or [None, None]
        fronts = [g.front(view, f, w) for g, f, w in zip(both, found, windows, strict=True)]
        same(*fronts, *FIELDS)
        same(fronts[0].window, fronts[1].window, "slots", "own", "seen")
        shape = (batch, topk, topk)
        added = tokens(shape, 3 + level), logprobs(kind, shape, 9 + level)
        found = [g.add(f, r.survivors, *added) for g, f, r in zip(both, found, fronts, strict=True)]
        same(*found, "tokens", "scores", "parent")
    count = min(count, found[0].tokens.shape[1])
    same(*(g.keep(f, root, count) for g, f in zip(both, found, strict=True)), "tokens", "parent")
