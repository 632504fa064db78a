"""The attention kernel at tile sizes that force several blocks, tiles and splits, against float64 loops."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "backends"))

from attention_cases import Case, World, build, close, extend, reference, verify, windowed

from kernels import attention_tile
from kernels.attention_merge import Partial, Workspace
from kernels.attention_splits import Space
from kernels.attention_tile import grid_of, launch
from kernels.attention_tiles import Tile
from kernels.launch import power_of_two

CUDA = torch.cuda.is_available()
DEVICES = [
    pytest.param(
        "cpu", torch.float32, marks=pytest.mark.skipif(CUDA, reason="Triton is compiled in this process")
    ),
    *(
        pytest.param(
            "cuda", t, marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="no CUDA device")]
        )
        for t in (torch.float32, torch.bfloat16, torch.float16)
    ),
]
devices = pytest.mark.parametrize(("device", "dtype"), DEVICES)
CASES = [
    verify(1, lens=(37, 0, 70), dim=32),
    verify(16, lens=(37, 0), heads=4, kv_heads=1, tree=True),
    verify(5, lens=(20,), page_size=1, heads=9, kv_heads=3),
    extend((33, 2), (0, 21), heads=4, kv_heads=2),
    windowed(5, 23, lens=(37, 0), heads=8, kv_heads=2),
]
NAMES = ["decode", "tree", "chain", "extend", "window"]


def room_for(world: World, tile: Tile, splits: int) -> Workspace:
    """Sums and stats hold nothing that may be read."""
    case, unsplit = world.case, Workspace.allocate(Space(0, 0, 1), world.context.device)
    grid = grid_of(world.batch, case.heads, case.kv_heads, tile, Partial(splits, 1, unsplit))
    cells = world.q.shape[0] * case.heads * splits
    room = Workspace.allocate(Space(cells, grid[0] * grid[1], case.dim), world.context.device)
    room.sums.fill_(float("nan"))
    room.stats.fill_(float("nan"))
    return room


def attend(case: Case, tile: Tile, splits: int, least: int = 1) -> None:
    world = build(case)
    args = (world.q, world.kv, world.batch, world.context.scale, case.page_size, tile)
    if splits == 1:
        out = launch(*args)
    else:
        room = room_for(world, tile, splits)
        out = launch(*args, Partial(splits, least, room))
        assert not room.arrivals.any(), "the next launch would not find zeros"
    close(out.flatten(1), reference(world), case.dtype)


@devices
@pytest.mark.parametrize("splits", [1, 2, 3, 7])
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_blocks_and_splits(device: str, dtype: torch.dtype, splits: int, case: Case) -> None:
    attend(Case(**{**vars(case), "device": device, "dtype": dtype}), Tile(16, 16), splits)


@devices
@pytest.mark.parametrize("least", [1, 20, 40, 64, 1000])
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_a_request_uses_as_many_splits_as_its_length_is_worth(
    device: str, dtype: torch.dtype, least: int, case: Case
) -> None:
    attend(Case(**{**vars(case), "device": device, "dtype": dtype}), Tile(16, 16), 5, least)


@devices
@pytest.mark.parametrize(("keys", "splits"), [(16, 1), (16, 3), (32, 2), (128, 1)])
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_a_block_of_old_keys_may_be_held(
    device: str, dtype: torch.dtype, keys: int, splits: int, case: Case
) -> None:
    """The first block has old keys only, both kinds, or new ones only (no prefix; a split behind it)."""
    attend(Case(**{**vars(case), "device": device, "dtype": dtype}), Tile(16, keys, held=True), splits)


@pytest.mark.skipif(CUDA, reason="Triton is compiled in this process")
@pytest.mark.parametrize(("copied", "held"), [(False, True), (True, False)])
def test_a_tree_that_is_copied_for_the_launch_is_not_read_early(
    copied: bool, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is made right in front of attention, which is too late (kernels.launch.enter)."""
    world = build(CASES[1])
    assert world.batch.tree_mask is not None
    wide = world.batch.tree_mask.repeat(1, 1, 2)[:, :, :16]
    batch = replace(world.batch, tree_mask=wide if copied else wide.contiguous())
    seen: list[bool] = []
    monkeypatch.setattr(attention_tile, "_attention_tile", Told(seen))
    launch(world.q, world.kv, batch, 1.0, 16, Tile(16, 16, held=True))
    assert seen == [held]


@dataclass
class Told:
    """In place of the kernel."""

    seen: list[bool]

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *operands, **options: self.seen.append(options["HELD"])


@devices
@pytest.mark.parametrize("rows", [16, 32, 64])
@pytest.mark.parametrize("keys", [16, 32, 64, 128])
def test_tile_sizes(device: str, dtype: torch.dtype, rows: int, keys: int) -> None:
    attend(extend((40, 7), (9, 50), device=device, dtype=dtype), Tile(rows, keys), 1)


@devices
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_all_heads_in_one_tile(device: str, dtype: torch.dtype, case: Case) -> None:
    attend(Case(**{**vars(case), "device": device, "dtype": dtype}), Tile(16, 32, heads=case.kv_heads), 2)


@pytest.mark.parametrize(("n", "expected"), [(0, 1), (1, 1), (2, 2), (3, 4), (16, 16), (17, 32), (576, 1024)])
def test_power_of_two(n: int, expected: int) -> None:
    assert power_of_two(n) == expected
