"""Streamed attention has no interpreter: its text is checked on numpy, its layouts on a GPU."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
import pytest
import torch
from stream_emulation import Ids, StreamMachine, module
from test_attention_stream import Pass, reference
from torch import Tensor

from engine.batch import ForwardBatch
from kernels.attention_merge import Partial, Workspace
from kernels.attention_splits import Space
from kernels.attention_tiles import Tile

Edit = Callable[[str], str]


@dataclass(frozen=True)
class Cut:
    """How requests are split: parts at most, and least keys of one; how many blocks are in flight. seed: of
    rows of the table, and with `turn` of the order of programs. steep: how many times farther apart scores
    lie; low: all of them are far below zero. keys: of a block."""

    splits: int = 1
    least: int = 1
    stages: int = 1
    seed: int = 0
    steep: float = 1.0
    low: bool = False
    keys: int = 64
    turn: int = 0

    def order(self, ids: list[Ids]) -> list[Ids]:
        return random.Random(1000 * self.turn + self.seed).sample(ids, len(ids))

    def used(self, reach: int) -> tuple[int, int]:
        """(parts of such a request, blocks of each)."""
        parts = max(1, min(reach // self.least, self.splits))
        share = ceil(ceil(reach / parts) / self.keys)
        return ceil(reach / self.keys / share), share


@dataclass(frozen=True)
class Run:
    """One pass as the text computes it; a pool and queries need not lie without gaps."""

    case: Pass
    cut: Cut

    def check(self, edit: Edit = str) -> Tensor:
        """What comes out, which is that of float64."""
        rows = random.Random(self.cut.seed).sample(range(1, len(self.case.lens) + 1), len(self.case.lens))
        q, kv, batch = replace(self.case, dtype=torch.float64).build(torch.tensor(rows))
        q *= self.cut.steep
        q[..., 0] += 100 * self.cut.low
        kv.k[..., 0] -= 100 * self.cut.low
        beside = torch.full((q.shape[0], q.shape[1] + 3, q.shape[2]), float("nan"), dtype=q.dtype)
        beside[:, : q.shape[1]] = q
        partial = self.room()
        made = module(StreamMachine(self.cut.order), lambda request: self.settled(batch, request), edit)
        tile = Tile(16, self.cut.keys, stages=self.cut.stages, dependent=True)
        given = (beside[:, : q.shape[1]], kv, batch, self.case.scale, self.case.page, tile)
        out: Tensor = made["attention_stream"](*given, partial if self.cut.splits > 1 else None)
        expected = reference(q, kv, batch, self.case.scale)
        torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)
        operands = made["_attention_stream"].operands
        assert (operands[3].times_touched() == 1).all()
        self.left_as_planned(partial)
        self.read_as_needed(operands, batch)
        return out

    def room(self) -> Partial:
        """Just enough, no numbers in it."""
        tokens = len(self.case.lens) * self.case.width
        space = Space(tokens * self.case.heads * self.cut.splits, self.tiles, self.case.dim)
        room = Workspace.allocate(space, torch.device("cpu"))
        nothing = {name: getattr(room, name).double().fill_(np.nan) for name in ("sums", "stats")}
        return Partial(self.cut.splits, self.cut.least, replace(room, **nothing))

    @property
    def tiles(self) -> int:
        return len(self.case.lens) * self.case.kv_heads

    def settled(self, batch: ForwardBatch, request: int) -> np.ndarray:
        """Slots that earlier passes wrote."""
        found = np.zeros(batch.page_table.numel() * self.case.page, bool)
        found[slots_of(batch, request, self.case.lens[request])] = True
        return found

    def left_as_planned(self, partial: Partial) -> None:
        """Parts of requests that are split, and zeros in the counters."""
        assert not partial.room.arrivals.any()
        left = partial.room.stats.view(len(self.case.lens), -1, self.cut.splits, 2)
        for length, stats in zip(self.case.lens, left, strict=True):
            used, _ = self.cut.used(length + self.case.width)
            written = used if used > 1 else 0
            assert not stats[:, :written].isnan().any()
            assert stats[:, written:].isnan().all()

    def read_as_needed(self, operands: list[Any], batch: ForwardBatch) -> None:
        """Each key and value once; of what lies behind a request's end, the rest of its last page at most; of
        the table, what names its pages. As much as may be is asked for before the wait."""
        needed, allowed, named, early = set(), set(), set(), 0
        for request, length in enumerate(self.case.lens):
            reach = length + self.case.width
            pages = ceil(reach / self.case.page)
            needed |= set(slots_of(batch, request, reach))
            allowed |= set(slots_of(batch, request, pages * self.case.page))
            named |= set(int(batch.rows[request]) * batch.page_table.stride(0) + np.arange(pages))
            used, share = self.cut.used(reach)
            ends = [min(length // self.cut.keys, (part + 1) * share) - part * share for part in range(used)]
            early += sum(min(max(end, 0), self.cut.stages) for end in ends)
        for pool in operands[1:3]:
            assert (pool.copied[sorted(needed)] == 1).all(), "a key that is read twice, or never"
            assert not pool.copied[sorted(set(range(len(pool.copied))) - allowed)].any()
            assert pool.early == early * self.cut.keys * self.case.dim * self.case.kv_heads
        assert set(np.concatenate(operands[7].touched)) <= named


def slots_of(batch: ForwardBatch, request: int, count: int) -> np.ndarray:
    position = torch.arange(count)
    pages = batch.page_table[batch.rows[request], position // batch.page_size].long()
    return (pages * batch.page_size + position % batch.page_size).numpy()


GROUPS = [(1, 1, 1), (4, 1, 1), (3, 1, 2), (7, 2, 1), (8, 1, 2), (4, 1, 4), (16, 1, 1), (1, 3, 1), (2, 1, 3)]
EDGES = (0, 1, 7, 8, 15, 16, 17, 31, 47, 62, 63, 64, 65, 126, 127, 128, 129, 191, 192, 200, 255, 256, 257)
PAGES = (8, 16, 64, 128, 256)


def some(seed: int) -> Run:
    chance = random.Random(seed)
    group, kv_heads, width = chance.choice(GROUPS)
    count = chance.randint(1, 4)
    lens = [chance.randint(0, 1200) if chance.random() < 0.4 else chance.choice(EDGES) for _ in range(count)]
    sizes = chance.choice((64, 64, 128)), chance.choice(PAGES)
    splits, least = chance.choice((1, 2, 3, 5, 9, 32)), chance.choice((1, 1, 48, 64, 100, 2048))
    steep = chance.choice((1.0, 100.0))
    case = Pass(tuple(lens), width, group * kv_heads, kv_heads, *sizes)
    cut = Cut(
        splits,
        least,
        chance.randint(1, 3),
        seed,
        steep,
        chance.random() < 0.3,
        chance.choice((64, 64, 64, 128)),
    )
    return Run(case, cut)


@pytest.mark.parametrize("seed", range(80))
def test_passes_of_any_size(seed: int) -> None:
    some(seed).check()


def test_whichever_split_ends_last_the_bits_are_the_same() -> None:
    run = Run(Pass((0, 63, 700, 1000), 2, 8, 2, 64), Cut(splits=5, stages=2, steep=3.0))
    first, *others = (replace(run, cut=replace(run.cut, turn=turn)).check() for turn in range(6))
    assert all(torch.equal(first, other) for other in others)
