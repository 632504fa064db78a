"""How the grid of a decode launch is cut: from sizes that never change, so that bounds change no bit."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "backends"))

from attention_cases import Case, World, build, extend, run, verify, windowed

from backends.triton import TritonAttention
from engine.batch import HostLens, SeqLens
from kernels.attention_splits import SplitPlan, Splits

CUDA = torch.cuda.is_available()
PLACES = [
    pytest.param("cpu", marks=pytest.mark.skipif(CUDA, reason="Triton is compiled in this process")),
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="no CUDA device")]),
]
SHAPES = [(9, 3), (32, 8), (64, 1)]
PROGRAMS = 528  # four on each of 132 processors


def bounded(world: World, bound: int) -> World:
    lens = SeqLens(world.batch.seq_lens.device, (bound,) * world.batch.size)
    return replace(world, batch=replace(world.batch, seq_lens=lens))


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("kv_splits", [0, 3])
@pytest.mark.parametrize(
    "case",
    [
        verify(1, lens=(37, 0, 170)),
        verify(5, lens=(37, 170), tree=True),
        windowed(4, 12, lens=(9, 170)),
        extend((3, 40), (20, 0)),
    ],
    ids=["decode", "tree", "window", "extend"],
)
def test_a_bound_changes_no_bit(device: str, kv_splits: int, case: Case) -> None:
    world = build(replace(case, device=device))
    backend = TritonAttention(TritonAttention.Config(kv_splits), world.context)
    tight = run(backend, bounded(world, max(n or 0 for n in case.lens)))
    for bound in (171, 200, case.max_context):
        assert torch.equal(run(backend, bounded(world, bound)), tight)


def test_nothing_is_read_on_the_host() -> None:
    assert TritonAttention.facts({}).host_lens is HostLens.NONE


@pytest.mark.parametrize("device", PLACES)
def test_a_split_request_leaves_nothing_beyond_its_own_splits(device: str) -> None:
    """What earlier launches left in the workspace is never read."""
    world = build(verify(1, lens=(5, 170, 40), device=device))
    backend = TritonAttention(TritonAttention.Config(4), world.context)
    first = run(backend, world)
    backend._workspace.sums.fill_(float("nan"))
    backend._workspace.stats.fill_(float("nan"))
    assert torch.equal(run(backend, world), first)


@pytest.mark.parametrize("device", PLACES)
def test_a_request_has_the_same_bits_beside_others(device: str) -> None:
    """At one batch size: its splits follow from its own length."""
    world = build(verify(1, lens=(170, 5, 40), device=device))
    backend = TritonAttention(TritonAttention.Config(4), world.context)
    alone = run(backend, world)[0].clone()
    lens = world.batch.seq_lens.device.clone()
    lens[1:] = torch.tensor([2, 7], dtype=torch.int32)
    shorter = replace(world, batch=replace(world.batch, seq_lens=SeqLens(lens, (256,) * 3)))
    assert torch.equal(run(backend, shorter)[0], alone)


@pytest.mark.parametrize("positions", [16, 1000, 9000, 131_072])
@pytest.mark.parametrize(("heads", "kv_heads"), SHAPES)
@pytest.mark.parametrize("fixed", [0, 3])
def test_the_workspace_holds_every_launch(positions: int, heads: int, kv_heads: int, fixed: int) -> None:
    plan = SplitPlan(PROGRAMS, fixed, 64)
    cells = plan.cells(257, 16, heads, kv_heads, positions)
    for size in (1, 2, 3, 8, 64, 256, 257):
        for width in (1, 2, 5, 16):
            count = plan.splits(size, width, heads, kv_heads, positions).count
            assert count >= 1
            if count > 1:
                assert size * width * heads * count <= cells


@pytest.mark.parametrize("positions", [255, 256, 9000])
@pytest.mark.parametrize(("heads", "kv_heads"), SHAPES)
def test_the_workspace_holds_split_prompts(positions: int, heads: int, kv_heads: int) -> None:
    plan = SplitPlan(PROGRAMS, 0, 64)
    cells = plan.cells(1, 1, heads, kv_heads, positions)
    split = set()
    for size in (1, 2, 7, 64):
        for tokens in (1, 5, 16, 17, 63, 128, 700, 4096):
            count = plan.prompt_splits(size, tokens, heads, kv_heads, positions).count
            split.add(count > 1)
            if count > 1:
                assert size * tokens * heads * count <= cells
    assert split == ({False, True} if positions > 256 else split)


@pytest.mark.parametrize(
    ("tokens", "expected"), [(1, 32), (8, 12), (32, 8), (64, 8), (128, 8), (256, 1), (2048, 1)]
)
def test_splits_of_a_prompt_of_an_eight_billion_model(tokens: int, expected: int) -> None:
    """Fewer than eight are not worth their merge."""
    assert SplitPlan(PROGRAMS, 0, 64).prompt_splits(1, tokens, 32, 8, 8192).count == expected


@pytest.mark.parametrize(
    ("size", "positions", "expected"),
    [
        (1, 8192, Splits(32, 48)),  # the device is filled
        (1, 512, Splits(10, 48)),  # no more than the longest request could use
        (1, 64, Splits(1, 48)),
        (8, 8192, Splits(8, 48)),
        (32, 8192, Splits(4, 128)),  # half filled
        (64, 8192, Splits(4, 1024)),  # already filled: only long requests are split
        (64, 2048, Splits(2, 1024)),
        (256, 8192, Splits(1, 1024)),
    ],
)
def test_splits_of_an_eight_billion_model(size: int, positions: int, expected: Splits) -> None:
    assert SplitPlan(PROGRAMS, 0, 64).splits(size, 1, 32, 8, positions) == expected


@pytest.mark.parametrize(("width", "expected"), [(1, 32), (3, 32), (4, 24), (5, 19), (8, 12), (16, 8)])
def test_wide_passes_have_fewer_splits(width: int, expected: int) -> None:
    """One program reads all parts of a tile."""
    assert SplitPlan(PROGRAMS, 0, 64).splits(1, width, 32, 8, 8192).count == expected


@pytest.mark.parametrize(("width", "least"), [(1, 48), (4, 48), (5, 256), (16, 256)])
def test_wide_passes_have_longer_splits(width: int, least: int) -> None:
    """A merge of more rows has to be worth more."""
    assert SplitPlan(PROGRAMS, 0, 64).splits(8, width, 32, 8, 8192).least == least


@pytest.mark.parametrize(
    ("width", "rows", "expected"), [(1, 64, 257 * 8), (16, 32, 257 * 16), (1, 8, 257 * 8)]
)
def test_each_tile_of_the_largest_pass_has_a_counter(width: int, rows: int, expected: int) -> None:
    assert SplitPlan(PROGRAMS, 0, rows).split_tiles(257, width, 32, 8) == expected
    assert SplitPlan(PROGRAMS, 0, rows).split_tiles(1, width, 32, 8) == PROGRAMS
