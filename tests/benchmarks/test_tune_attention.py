"""The sweep of attention tiles: its passes, its arithmetic, and that every contender computes the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.attention_candidates import Way, decode_tiles, decode_ways, extend_tiles, text_of
from benchmarks.attention_timing import Bench, Heads, Pass, with_splits
from benchmarks.tune_attention import _parser, decodes, extends, main, passes_of, timed
from kernels.attention_splits import SplitPlan
from kernels.attention_tiles import HOPPER, Tile, tiles_for

CUDA = torch.cuda.is_available()
SMALL = Heads(4, 2, 16, page=8)
CPU = torch.device("cpu")
TILE = Tile(16, 16)
interpreted = pytest.mark.skipif(CUDA, reason="Triton is compiled in this process")


def test_bytes_and_products_by_hand() -> None:
    decode = Pass(Heads(32, 8, 128), 4, 1, 1023, verify=True)
    assert decode.bytes == 4 * 1024 * 4096  # 4 KiB of keys and values a position
    prompt = Pass(Heads(32, 8, 128), 1, 3, 0, verify=False)
    assert prompt.flops == 4 * 128 * 32 * (1 + 2 + 3)
    assert Pass(Heads(32, 8, 128), 1, 3, 10, verify=False).flops == prompt.flops + 4 * 128 * 32 * 30


def test_contexts_are_whole_pages_and_include_the_new_tokens() -> None:
    passes = decodes(Heads(32, 8, 128), [1, 8], [256, 1024], [1, 5])
    assert len(passes) == 8
    assert all((one.before + one.new) % one.heads.page == 0 for one in passes)
    assert [(one.before, one.new) for one in extends(SMALL, [128], 64)] == [(0, 128), (64, 128)]
    assert [(one.before, one.new) for one in extends(SMALL, [128], 0)] == [(0, 128)]


@interpreted
@pytest.mark.parametrize(("new", "before"), [(1, 31), (5, 19)])
def test_decode_and_sdpa_agree(new: int, before: int) -> None:
    bench = Bench(Pass(SMALL, 3, new, before, verify=True), CPU, 0)
    expected = bench.once(bench.library())
    plans = with_splits(SplitPlan(1, 1, 16), [2, 3])
    assert [plan.fixed for plan in plans] == [1, 2, 3]
    for plan in plans:
        torch.testing.assert_close(bench.once(bench.decode(TILE, plan)), expected, rtol=2e-2, atol=2e-2)


@interpreted
@pytest.mark.parametrize("before", [0, 16])
@pytest.mark.parametrize("splits", [1, 3])
def test_prefill_and_sdpa_agree(before: int, splits: int) -> None:
    bench = Bench(Pass(SMALL, 1, 24, before, verify=False), CPU, 0)
    torch.testing.assert_close(
        bench.once(bench.extend(TILE, SplitPlan(1, splits, 16))),
        bench.once(bench.library()),
        rtol=2e-2,
        atol=2e-2,
    )


@interpreted
def test_a_contender_that_computes_something_else_is_an_error() -> None:
    bench = Bench(Pass(SMALL, 1, 8, 0, verify=False), CPU, 0)
    expected = bench.once(bench.library())
    with pytest.raises(RuntimeError, match="off at Pass"):
        timed(bench, lambda q, kv: q, expected)


def test_what_does_not_fit_takes_forever() -> None:
    class Full:
        what = None

        def once(self, run: object) -> torch.Tensor:
            raise RuntimeError("out of resource: shared memory")

    assert timed(Full(), lambda q, kv: q, torch.zeros(1)) == float("inf")  # type: ignore[arg-type]


def test_a_tile_on_one_line() -> None:
    for tile in (Tile(16, 64, warps=4, stages=3), Tile(128, 32, warps=8, stages=2, registers=128)):
        assert eval(text_of(tile), {"Tile": Tile}) == tile


def test_candidates_are_all_different() -> None:
    chosen = Tile(16, 64, warps=4, stages=3, dependent=True)
    for tiles in (decode_tiles(chosen), extend_tiles(True)):
        assert len(set(tiles)) == len(tiles)
        assert all(tile.dependent for tile in tiles)
    assert {tile.rows for tile in decode_tiles(chosen)} == {16}


def test_a_quick_sweep_takes_the_passes_that_decide_most() -> None:
    decoding, extending = passes_of(_parser().parse_args(["--quick"]))
    assert [(p.requests, p.new, p.before + p.new) for p in decoding] == [
        (1, 1, 256), (8, 1, 256), (64, 1, 256), (256, 1, 256), (1, 5, 256), (8, 5, 256)
    ]  # fmt: skip
    assert [(p.new, p.before) for p in extending] == [(1024, 0), (8192, 0)]
    decoding, extending = passes_of(_parser().parse_args(["--batches", "2", "--prefix", "0"]))
    assert {p.requests for p in decoding} == {2}
    assert len(extending) == 7


@interpreted
def test_a_wide_table_changes_no_result() -> None:
    what = Pass(SMALL, 2, 1, 31, verify=True)
    narrow, wide = Bench(what, CPU, 0), Bench(what, CPU, 0, 256)
    assert (narrow.batch.page_table.shape[1], wide.batch.page_table.shape[1]) == (4, 32)
    assert torch.equal(wide.batch.page_table[:, :4], narrow.batch.page_table)
    plan = SplitPlan(64, 0, 16)
    torch.testing.assert_close(
        wide.once(wide.decode(TILE, plan)), wide.once(wide.library()), rtol=2e-2, atol=2e-2
    )


@interpreted
def test_without_a_gpu_nothing_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("requests", "width", "streamed", "tried"),
    [(1, 1, False, True), (8, 1, True, True), (256, 5, False, False)],
)
def test_what_an_engine_takes_comes_first(requests: int, width: int, streamed: bool, tried: bool) -> None:
    """Of an 8B on an H200: small passes have tiles, five tokens of four heads too many rows for streams."""
    bench = Bench(Pass(Heads(32, 8, 128), requests, width, 32 - width, verify=True), CPU, 0)
    tiles, plan = tiles_for(HOPPER, 2, 128), SplitPlan(528, 0, 64)
    chosen, ways = decode_ways(bench, plan, tiles, True)
    assert ways[0] == chosen
    assert chosen.streamed is streamed
    assert any(way.streamed for way in ways) is tried
    assert any(not way.streamed for way in ways)
    assert len(set(ways)) == len(ways)
    assert all(way.tile and way.tile.dependent for way in ways)
    assert str(Way(Tile(16, 64), streamed=True)).startswith("streamed Tile(16, 64")


@pytest.mark.parametrize(
    ("requests", "width", "tried"), [(98, 1, True), (99, 1, True), (256, 1, True), (256, 2, False)]
)
def test_so_does_the_queue_where_it_can_be_used(requests: int, width: int, tried: bool) -> None:
    bench = Bench(Pass(Heads(32, 8, 128), requests, width, 32 - width, verify=True), CPU, 0)
    tiles, plan = replace(tiles_for(HOPPER, 2, 128), queued=True), SplitPlan(528, 0, 64)
    chosen, ways = decode_ways(bench, plan, tiles, True)
    assert ways[0] == chosen
    assert (Way(None) in ways) is tried
    assert (str(chosen) == "queued") is (tried and requests >= 99)
    assert len(set(ways)) == len(ways) > 1
