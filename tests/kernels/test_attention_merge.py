"""The merge by a tile's last split: any order gives the same bits, and launches leave their counters at
zero."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "backends"))

from attention_cases import Case, World, build, close, extend, reference, run, verify, windowed

from backends.triton import TritonAttention
from engine.batch import SeqLens, kv_slots
from kernels.attention_merge import Partial, Workspace, merge_sizes
from kernels.attention_splits import Space
from kernels.attention_tile import grid_of, launch
from kernels.attention_tiles import Tile
from kernels.launch import INTERPRETED

CUDA = torch.cuda.is_available()
interpreted = pytest.mark.skipif(CUDA, reason="Triton is compiled in this process")
PLACES = [
    pytest.param("cpu", torch.float32, marks=interpreted),
    *(
        pytest.param(
            "cuda", dtype, marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="no CUDA device")]
        )
        for dtype in (torch.float32, torch.bfloat16)
    ),
]
places = pytest.mark.parametrize(("device", "dtype"), PLACES)
TILE = Tile(16, 16)
CASES = {
    "decode": verify(1, lens=(90, 5, 40)),
    "chain": verify(5, lens=(30, 80), heads=8, kv_heads=2),
    "tree": verify(5, lens=(60, 0), tree=True),
    "window": windowed(4, 20, lens=(60, 9)),
    "extend": extend((20, 3), (10, 60), heads=4, kv_heads=2),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


class Launches:
    """Launches of one batch's shape in one workspace."""

    def __init__(self, world: World, splits: int, least: int = 1) -> None:
        case = world.case
        self.world = world
        empty = Workspace.allocate(Space(0, 0, 1), world.context.device)
        grid = grid_of(world.batch, case.heads, case.kv_heads, TILE, Partial(splits, least, empty))
        cells = world.q.shape[0] * case.heads * splits
        self.room = Workspace.allocate(Space(cells, grid[0] * grid[1], case.dim), world.context.device)
        self._partial = Partial(splits, least, self.room)

    def once(self, world: World | None = None) -> torch.Tensor:
        at = world or self.world
        for part in (self.room.sums, self.room.stats):
            part.fill_(float("nan"))  # what earlier launches left is not to be read
        args = at.q, at.kv, at.batch, at.context.scale, at.case.page_size, TILE, self._partial
        return launch(*args).flatten(1)


def reorder(monkeypatch: pytest.MonkeyPatch, order: Sequence[int]) -> None:
    """Interpreted programs take the splits in this order."""
    from triton.runtime.interpreter import interpreter_builder

    plain = interpreter_builder.set_grid_idx
    monkeypatch.setattr(interpreter_builder, "set_grid_idx", lambda x, y, z: plain(x, y, order[z]))


@interpreted
@cases
@pytest.mark.parametrize("order", [(3, 2, 1, 0), (1, 3, 0, 2)])
def test_whoever_comes_last_the_bits_are_the_same(
    monkeypatch: pytest.MonkeyPatch, case: Case, order: tuple[int, ...]
) -> None:
    launches = Launches(build(case), len(order))
    expected = launches.once()
    reorder(monkeypatch, order)
    assert torch.equal(launches.once(), expected)
    assert not launches.room.arrivals.any()


@places
@cases
def test_again_and_again_the_same_bits(device: str, dtype: torch.dtype, case: Case) -> None:
    """On a GPU splits end in whatever order they happen to."""
    launches = Launches(build(replace(case, device=device, dtype=dtype)), 5)
    expected = launches.once()
    close(expected, reference(launches.world), dtype)
    for _ in range(1 if INTERPRETED else 200):
        assert torch.equal(launches.once(), expected)
    assert not launches.room.arrivals.any()


@places
@pytest.mark.parametrize(("splits", "least"), [(2, 1), (3, 1), (8, 20), (13, 1), (17, 20), (32, 1)])
def test_up_to_thirty_two_splits(device: str, dtype: torch.dtype, splits: int, least: int) -> None:
    """Short and long requests side by side: of one split, of some, of all."""
    case = verify(1, lens=(0, 1, 33, 280), max_context=288, heads=2, kv_heads=1, device=device, dtype=dtype)
    launches = Launches(build(case), splits, least)
    close(launches.once(), reference(launches.world), dtype)
    assert not launches.room.arrivals.any()


@places
@pytest.mark.parametrize("width", [1, 5])
def test_launches_of_other_lengths_share_counters(device: str, dtype: torch.dtype, width: int) -> None:
    """One request grows from one split to all while another shrinks."""
    case = verify(width, lens=(200, 200), device=device, dtype=dtype)
    launches = Launches(build(case), 6, least=16)
    for lens in ((3, 200), (40, 130), (90, 60), (200, 0)):
        at = with_lens(launches.world, lens)
        close(launches.once(at), reference(at), dtype)
        assert not launches.room.arrivals.any()


def with_lens(world: World, lens: tuple[int, ...]) -> World:
    """Other lengths: the keys of the new tokens are whatever lies behind them."""
    batch, page = world.batch, world.case.page_size
    now = torch.tensor(lens, dtype=torch.int32, device=batch.slots.device)
    positions = now.long()[:, None] + torch.arange(batch.width, device=now.device)
    slots = kv_slots(batch.page_table, page, batch.rows[:, None], positions).flatten()
    bound = tuple(n + world.case.slack for n in lens)
    return replace(world, batch=replace(batch, seq_lens=SeqLens(now, bound), slots=slots))


@places
@pytest.mark.parametrize("kv_splits", [0, 5])
def test_a_backend_keeps_its_counters_at_zero(device: str, dtype: torch.dtype, kv_splits: int) -> None:
    """Decode, verify and prefill in turn share one workspace."""
    shape = {"device": device, "dtype": dtype, "heads": 4, "kv_heads": 2}
    worlds = [
        build(verify(5, lens=(170, 5, 40), **shape)),
        build(extend((3, 1, 20), (170, 0, 40), **shape)),
        build(verify(5, lens=(2, 160, 90), tree=True, **shape)),
    ]
    backend = TritonAttention(TritonAttention.Config(kv_splits), worlds[0].context)
    for world in worlds + worlds[::-1]:
        close(run(backend, world), reference(world), dtype)
        assert not backend._workspace.arrivals.any()


@pytest.mark.parametrize(("values", "grid", "fits"), [(64, (2, 3, 4), True), (65, (2, 3, 4), False)])
def test_what_a_workspace_holds(values: int, grid: tuple[int, int, int], fits: bool) -> None:
    room = Workspace.allocate(Space(4, 6, 16), torch.device("cpu"))
    assert room.holds(values, grid) is fits
    assert room.holds(values, (7, 1, 2)) is False


@pytest.mark.parametrize("rows", [1, 4, 20, 64])
@pytest.mark.parametrize("dim", [16, 64, 128, 256])
@pytest.mark.parametrize("tile", [Tile(16, 32, warps=2), Tile(32, 64), Tile(64, 64, warps=8), Tile(128, 64)])
def test_merges_take_whole_parts_of_a_tile(rows: int, dim: int, tile: Tile) -> None:
    merged, taken = merge_sizes(min(rows, tile.rows), dim, tile)
    assert tile.rows % merged == 0
    assert 1 <= taken <= 16
    assert merged & (merged - 1) == 0
    assert taken & (taken - 1) == 0
