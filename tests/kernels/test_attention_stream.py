"""Attention whose keys go by bulk copies to the matrix units: which passes it takes, and what comes out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.batch import ForwardBatch, LayerKV, Mode, SeqLens
from kernels.attention_decode import attention_decode
from kernels.attention_merge import Partial, Workspace
from kernels.attention_splits import Space, SplitPlan, Splits
from kernels.attention_stream import attention_stream, streams
from kernels.attention_tiles import HOPPER, Tile, tiles_for

HOPPER_HERE = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == HOPPER
on_hopper = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER_HERE, reason="no Hopper GPU")]
TILE = Tile(16, 64, warps=4, stages=1)


@dataclass(frozen=True)
class Pass:
    """lens: KV entries of each request before the pass."""

    lens: tuple[int, ...]
    width: int = 1
    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    page: int = 16
    dtype: torch.dtype = torch.bfloat16
    device: str = "cpu"

    def build(self, rows: Tensor | None = None) -> tuple[Tensor, LayerKV, ForwardBatch]:
        """Queries, a pool that holds no numbers but where keys and values are, and the pass. rows: of the
        table, a permutation of 1 to the number of requests, that they use."""
        torch.manual_seed(len(self.lens))
        columns = -(-(max(self.lens) + self.width) // self.page)
        pages = len(self.lens) * columns
        table = torch.zeros((len(self.lens) + 1, columns), dtype=torch.int32)
        table[1:] = (torch.randperm(pages) + 1).view(len(self.lens), columns).int()
        shape = ((pages + 1) * self.page, self.kv_heads, self.dim)
        pools = [torch.full(shape, float("nan")).to(self.dtype) for _ in "kv"]
        nothing, count = torch.zeros(0, dtype=torch.int64), len(self.lens)
        rows = torch.arange(1, count + 1) if rows is None else rows
        for row, length in zip(rows, self.lens, strict=True):
            position = torch.arange(length + self.width)
            slots = table[row, position // self.page].long() * self.page + position % self.page
            for pool in pools:
                pool[slots] = torch.randn(len(slots), *shape[1:]).to(self.dtype)
        q = torch.randn(len(self.lens) * self.width, self.heads, self.dim).to(self.dtype)
        batch = ForwardBatch(
            mode=Mode.VERIFY,
            rows=rows.to(self.device),
            input_ids=nothing,
            positions=nothing,
            slots=nothing,
            seq_lens=SeqLens(torch.tensor(self.lens, dtype=torch.int32).to(self.device), self.lens),
            query_start=(torch.arange(count + 1, dtype=torch.int32) * self.width).to(self.device),
            query_lens=(self.width,) * count,
            page_table=table.to(self.device),
            width=self.width,
            page_size=self.page,
        )
        return q.to(self.device), LayerKV(0, *(pool.to(self.device) for pool in pools)), batch

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.dim)


def reference(q: Tensor, kv: LayerKV, batch: ForwardBatch, scale: float) -> Tensor:
    """In float64, request by request."""
    found = []
    for number, length in enumerate(batch.seq_lens.bound):
        position = torch.arange(length + batch.width, device=q.device)
        pages = batch.page_table[batch.rows[number], position // batch.page_size].long()
        slots = pages * batch.page_size + position % batch.page_size
        group = q.shape[1] // kv.k.shape[1]
        k, v = (side[slots].double().repeat_interleave(group, 1) for side in (kv.k, kv.v))
        own = q[number * batch.width :][: batch.width].double()
        scores = torch.einsum("whd,lhd->whl", own, k) * scale
        node = torch.arange(batch.width, device=q.device)
        scores.masked_fill_((position[None, :] > length + node[:, None])[:, None], float("-inf"))
        found.append(torch.einsum("whl,lhd->whd", scores.softmax(-1), v))
    return torch.cat(found)


LENS = (0, 1, 15, 16, 17, 62, 63, 64, 65, 127, 128, 129, 200, 255, 256, 257, 640)
CASES = {
    "8B": Pass(LENS),
    "SmolLM2": Pass(LENS, heads=9, kv_heads=3, dim=64),
    "one head a group": Pass(LENS, heads=4, kv_heads=4),
    "eight a group": Pass(LENS, heads=16, kv_heads=2, dtype=torch.float16),
    "seven a group": Pass(LENS, heads=28, kv_heads=4),
    "a chain of two": Pass(LENS, width=2),
    "a chain of four": Pass(LENS, width=4),
    "pages of 8": Pass(LENS, page=8),
    "pages of 64": Pass(LENS, page=64, dim=64),
    "pages of 256": Pass(LENS, page=256),
}


@pytest.mark.parametrize("stages", [pytest.param(n, marks=on_hopper) for n in (1, 2, 3)])
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_results_are_those_of_float64(case: Pass, early: bool, stages: int) -> None:
    """Twice the same to the bit, and nothing of what lies behind a request's end."""
    q, kv, batch = replace(case, device="cuda").build()
    tile = replace(TILE, stages=stages, dependent=early)
    assert streams(q, kv, batch, case.page, tile)
    out = attention_stream(q, kv, batch, case.scale, case.page, tile)
    assert torch.equal(out, attention_stream(q, kv, batch, case.scale, case.page, tile))
    expected = reference(q, kv, batch, case.scale)
    assert (out.double() - expected).norm() / expected.norm() < 5e-3
    assert (out.double() - expected).abs().max() < 2e-2


@pytest.mark.parametrize("least", [pytest.param(n, marks=on_hopper) for n in (1, 64, 100, 5000)])
@pytest.mark.parametrize("splits", [2, 4, 9])
@pytest.mark.parametrize("case", ["8B", "SmolLM2", "a chain of four", "pages of 8"])
def test_splits_are_merged_by_the_last(case: str, splits: int, least: int) -> None:
    """What lies in the workspace before may be no numbers; its counters are zero again at the end."""
    world = replace(CASES[case], device="cuda")
    q, kv, batch = world.build()
    cells = batch.size * world.width * world.heads * splits
    room = Workspace.allocate(Space(cells, batch.size * world.kv_heads, world.dim), q.device)
    expected = reference(q, kv, batch, world.scale)
    found = []
    for _ in range(2):
        room.sums.fill_(float("nan"))
        room.stats.fill_(float("nan"))
        partial = Partial(splits, least, room)
        found.append(attention_stream(q, kv, batch, world.scale, world.page, TILE, partial))
        assert not room.arrivals.any(), "the next launch would not find zeros"
    assert torch.equal(*found)
    assert (found[0].double() - expected).norm() / expected.norm() < 5e-3
    assert (found[0].double() - expected).abs().max() < 2e-2


@pytest.mark.parametrize("requests", [pytest.param(n, marks=on_hopper) for n in (5, 8, 60, 200)])
def test_all_but_small_passes_are_left_to_the_stream(requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As attention_decode decides, which is left to itself here; the longest request is split."""
    case = Pass((5000, *range(1, requests)), device="cuda")
    q, kv, batch = case.build()
    tiles = tiles_for(HOPPER, 2, case.dim)
    plan = SplitPlan(528, 0, tiles.decode.rows)
    positions = batch.page_table.shape[1] * case.page
    room = Workspace.allocate(Space(plan.cells(requests, 1, 32, 8, positions), 2048, case.dim), q.device)
    taken = []

    def noted(q: Tensor, *rest: Any) -> Tensor:
        taken.append(q.shape)
        return attention_stream(q, *rest)

    monkeypatch.setattr("kernels.attention_decode.attention_stream", noted)
    out = attention_decode(q, kv, batch, case.scale, case.page, tiles, plan, room)
    assert len(taken) == (requests > 5)
    expected = reference(q, kv, batch, case.scale)
    assert (out.double() - expected).norm() / expected.norm() < 5e-3


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        (Pass((3, 4)), True),
        (Pass((3, 4), width=4), True),
        (Pass((3, 4), width=5), False),  # 20 rows
        (Pass((3, 4), dim=64, heads=9, kv_heads=3), True),
        (Pass((3, 4), dim=80), False),
        (Pass((3, 4), dim=256), False),
        (Pass((3, 4), page=4), False),
        (Pass((3, 4), page=24), False),
        (Pass((3, 4), dtype=torch.float32), False),
    ],
)
def test_what_may_be_streamed(case: Pass, wanted: bool) -> None:
    assert streams(*case.build(), case.page, TILE) is wanted


def test_trees_windows_and_prompts_are_not_streamed() -> None:
    q, kv, batch = Pass((3, 4)).build()
    tree, window = torch.ones(2, 1, 1, dtype=torch.bool), torch.zeros(2, 1, dtype=torch.int64)
    for other in (
        replace(batch, tree_mask=tree),
        replace(batch, tree_mask=tree, window_slots=window),
        replace(batch, width=0, mode=Mode.EXTEND),
    ):
        assert not streams(q, kv, other, 16, TILE)


def test_all_but_small_passes_stream() -> None:
    """An 8B's on an H200; one new token of six requests or more."""
    plan = SplitPlan(528, 0, 64)
    assert [plan.streaming(requests, 8) for requests in (1, 5, 6, 256)] == [False, False, True, True]
    lean = tiles_for(HOPPER, 2, 128).lean()
    assert (lean.streaming(False), lean.streaming(True)) == (None, None)


def test_streams_split_while_programs_are_few() -> None:
    """An 8B's on an H200, of long contexts: (requests, splits, least keys of one)."""
    plan = SplitPlan(528, 0, 64)
    cases = [(6, 8, 128), (8, 6, 128), (16, 3, 128), (17, 2, 128), (24, 2, 128), (25, 4, 2048), (32, 4, 2048),
             (64, 4, 2048), (128, 2, 2048), (256, 1, 2048)]  # fmt: skip
    for requests, count, least in cases:
        assert plan.streamed_splits(requests, 8, 131072) == Splits(count, least)
        assert plan.parting(requests, 8) is (requests <= 24)
    assert plan.streamed_splits(8, 8, 300).count == 2
    assert plan.streamed_splits(32, 8, 2047).count == 1
    assert plan.streamed_splits(64, 8, 4100).count == 2
    assert SplitPlan(528, 7, 64).streamed_splits(64, 8, 131072) == Splits(7, 1)


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("kv_heads", [1, 3, 8, 32])
@pytest.mark.parametrize("positions", [200, 4096])
def test_a_workspace_is_planned_for_streamed_splits_too(kv_heads: int, width: int, positions: int) -> None:
    plan = SplitPlan(528, 0, 64)
    for requests in range(1, 260, 3):
        count = plan.streamed_splits(requests, kv_heads, positions).count
        needed = requests * width * 4 * kv_heads * count if plan.streaming(requests, kv_heads) else 0
        assert count == 1 or plan.cells(requests, width, 4 * kv_heads, kv_heads, positions) >= needed


@pytest.mark.parametrize("later", [10, 11, 12])
def test_later_generations_do_not_stream(later: int) -> None:
    """They have no instructions of Hopper's matrix units (wgmma)."""
    assert tiles_for(later, 2, 128) == replace(tiles_for(HOPPER, 2, 128), streamed=None, parted=None)


@pytest.mark.parametrize(("parting", "programs"), [(False, 6), (True, 3)])
def test_so_many_programs_fit_a_multiprocessor(parting: bool, programs: int) -> None:
    """By shared memory: 5 KiB a program beside its blocks, one of them the driver's. Heads of 64 stream where
    a table says so, and none does."""
    tile = tiles_for(HOPPER, 2, 128).streaming(parting)
    assert tile is not None
    assert programs * (2 * tile.stages * tile.keys * 128 * 2 + 5120) <= 228 * 1024
    assert tiles_for(HOPPER, 2, 128).dependent().streaming(parting) == replace(tile, dependent=True)
    others = (tiles_for(8, 2, 128), tiles_for(HOPPER, 4, 128), tiles_for(HOPPER, 2, 64))
    assert {tiles.streaming(parting) for tiles in others} == {None}
    alone = replace(tiles_for(HOPPER, 2, 128), parted=None)
    assert alone.streaming(parting) == alone.streamed
