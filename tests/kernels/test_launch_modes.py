"""How kernels are launched: dependent launches where a GPU has them, and the count of compiled kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from triton import knobs

from engine.compiled import COMPILED, CompileCount
from kernels.attention_splits import SplitPlan
from kernels.attention_tiles import HOPPER, Tile, Tiles, tiles_for
from kernels.launch import INTERPRETED, dependent


def test_a_dependent_launch_is_one_to_kernel_and_launcher_alike() -> None:
    """A kernel that is launched early and does not wait would read what is not written yet."""
    assert dependent(True) == {"PDL": True, "launch_pdl": True}
    assert dependent(False) == {"PDL": False}  # other devices know no such launch argument


def test_compiled_kernels_are_counted_beside_another_hook() -> None:
    seen: list[str] = []

    def other(**event: str) -> str:
        seen.append(event["key"])
        return "kept"

    count = CompileCount()
    hook = count.before(other)
    assert [hook(key="a"), hook(key="b")] == ["kept", "kept"]
    assert (count.total, seen) == (2, ["a", "b"])
    assert count.before(None)(key="c") is None
    assert count.total == 3


@pytest.mark.skipif(not INTERPRETED, reason="Triton is compiled in this process")
def test_nothing_is_compiled_in_the_interpreter() -> None:
    assert COMPILED.total == 0
    assert knobs.runtime.jit_post_compile_hook is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_each_variant_counts_once() -> None:
    from kernels.silu_mul import silu_mul

    before = COMPILED.total
    for _ in range(2):
        silu_mul(torch.ones(2, 2 * 4242, device="cuda"))
    assert COMPILED.total == before + 1


@pytest.mark.parametrize("capability", [8, HOPPER, HOPPER + 1])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("dim", [32, 64, 80, 128, 256])
def test_tiles_fit_a_block_of_the_device(capability: int, size: int, dim: int) -> None:
    """Queries, and a block of keys and of values for each step in flight, of padded heads."""
    limit = 227 if capability >= HOPPER else 99
    side = 1 << (dim - 1).bit_length()
    tiles = tiles_for(capability, size, dim)
    few = dict(tiles.few).values()
    for tile in filter(None, (tiles.decode, tiles.extend, *tiles.narrow, *few, tiles.crowded)):
        # The last stage's keys are in use while the others travel.
        held = tile.rows + 2 * (tile.stages - 1) * tile.keys
        assert held * side * size <= limit * 1024
        assert tile.rows >= 16
        assert tile.keys >= 16


def test_two_kernels_serve_prompts_of_all_lengths() -> None:
    tiles = Tiles(Tile(64, 64), Tile(128, 64, warps=8, stages=3, dependent=True))
    assert {tiles.extending(rows) for rows in range(1, 3000)} == {
        Tile(64, 64, warps=8, stages=3, dependent=True),
        tiles.extend,
    }


def test_narrow_passes_may_have_tiles_of_their_own() -> None:
    narrow = Tile(16, 32, warps=2), Tile(32, 32, registers=168)
    tiles = Tiles(Tile(64, 64), Tile(128, 64), narrow)
    assert [tiles.decoding(rows) for rows in (1, 16, 17, 32)] == [narrow[0]] * 2 + [narrow[1]] * 2
    assert tiles.decoding(33) == tiles.decoding(100) == tiles.decode
    assert Tiles(Tile(64, 64), Tile(128, 64)).decoding(4) == Tile(16, 64)
    early = tiles.dependent()
    assert all(tile.dependent for tile in (*map(early.decoding, (4, 20, 64)), early.extend))


def test_a_crowd_of_narrow_passes_has_a_tile_of_its_own() -> None:
    narrow, crowded = (Tile(16, 32, stages=4), Tile(32, 32)), Tile(16, 32, stages=3)
    tiles = Tiles(Tile(64, 64), Tile(128, 64), narrow, crowded)
    assert tiles.decoding(4, crowded=True) == crowded
    assert tiles.decoding(4) == narrow[0]
    assert tiles.decoding(20, crowded=True) == narrow[1]
    assert tiles.dependent().decoding(4, crowded=True) == replace(crowded, dependent=True)
    assert Tiles(Tile(64, 64), Tile(128, 64)).decoding(4, crowded=True) == Tile(16, 64)
    plan = SplitPlan(528, 0, 64)
    assert not plan.crowded(64, 8)
    assert plan.crowded(256, 8)


def test_few_tiles_are_larger_the_more_room_they_have() -> None:
    """Of an 8B's heads on an H200: one new token of one or two requests, five of up to sixteen."""
    tiles, plan = tiles_for(HOPPER, 2, 128), SplitPlan(528, 0, 64)

    def chosen(requests: int, width: int) -> Tile:
        return tiles.decoding(4 * width, room=plan.room(requests, width, 32, 8))

    assert [chosen(requests, 1).held for requests in (1, 2, 3, 8)] == [True, True, False, False]
    assert [chosen(requests, 5).keys for requests in (1, 8, 16, 17)] == [64, 64, 64, 32]
    assert chosen(8, 1) == tiles.decoding(4) == tiles.narrow[0]
    assert chosen(1, 9) == tiles.decoding(36)
    assert not tiles.extend.held
    early = tiles.dependent()
    assert early.decoding(20, room=4) == replace(tiles.decoding(20, room=4), dependent=True)
    assert early.decoding(20, room=4) != early.decoding(20, room=3)


def test_only_limited_tiles_pass_a_limit_of_registers() -> None:
    assert Tile(16, 32).limits() == {}
    assert Tile(16, 32, registers=128).limits() == {"maxnreg": 128}
