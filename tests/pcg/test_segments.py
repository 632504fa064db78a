"""Captured segments compute what an eager pass does, whatever was replayed before, and write nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pcg_cases import CPU, PAGE, Bench, prompts, uninitialised_is_nan
from support.captures import captures
from torch import Tensor

from backends.base import AttentionBackend
from engine.batch import ForwardBatch, Mode
from engine.errors import InternalError
from engine.graphs.capture import CpuCapturer
from engine.metrics import EngineMetrics
from engine.models.base import drive
from engine.models.source import silent
from engine.prefill_graphs.buckets import Buckets
from engine.prefill_graphs.piecewise import Captures, PiecewisePasses

SIZES = Buckets((8, 16, 24))


def piecewise(bench: Bench) -> tuple[PiecewisePasses, CpuCapturer, EngineMetrics]:
    capturer, metrics = CpuCapturer(), EngineMetrics()
    captures = Captures(SIZES, PAGE, capturer.beside)
    return PiecewisePasses(bench.passes, captures, metrics), capturer, metrics


@torch.inference_mode()
def run(passes: PiecewisePasses, attention: AttentionBackend, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
    attention.init_forward_metadata(batch)
    hidden, aux = drive(passes.begin(batch, attention.ops), attention, batch)
    assert aux is not None
    return hidden, aux


@torch.inference_mode()
def expected(batch: ForwardBatch, *earlier: ForwardBatch) -> tuple[Tensor, Tensor, Bench]:
    """Of a fresh bench on which `earlier` ran before."""
    bench = Bench.make()
    for one in earlier:
        bench.eager(one)
    hidden, aux = bench.eager(batch)
    assert aux is not None
    return hidden, aux, bench


def same_kv(mine: Bench, other: Bench) -> None:
    for a, b in zip(mine.pool.layers, other.pool.layers, strict=True):
        torch.testing.assert_close(a.k[PAGE:], b.k[PAGE:], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(a.v[PAGE:], b.v[PAGE:], rtol=1e-5, atol=1e-5)


CHUNKS = [
    prompts(8),  # as many as were captured
    prompts(1),
    prompts(3, 5, 7, seed=1),
    prompts(9, 1, before=(4, 20), seed=2),
    prompts(24, seed=3),
]


@pytest.mark.parametrize("number", range(len(CHUNKS)))
def test_a_padded_pass_equals_an_eager_one(number: int) -> None:
    batch = CHUNKS[number]
    bench = Bench.make()
    passes, _, metrics = piecewise(bench)
    hidden, aux = run(passes, bench.attention, batch)
    wanted, states, other = expected(batch)
    torch.testing.assert_close(hidden, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(aux, states, rtol=1e-5, atol=1e-5)
    same_kv(bench, other)
    assert bench.padding_is_finite()
    size = SIZES.fit(batch.input_ids.shape[0])
    assert size is not None
    assert metrics.prefill_padding == size - batch.input_ids.shape[0]


def test_passes_in_any_order_leave_nothing_behind_for_the_next() -> None:
    bench = Bench.make()
    passes, capturer, metrics = piecewise(bench)
    for batch in (CHUNKS[4], CHUNKS[1], CHUNKS[2], CHUNKS[0], CHUNKS[2]):
        wanted, states, _ = expected(batch)
        hidden, aux = run(passes, bench.attention, batch)
        torch.testing.assert_close(hidden, wanted, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(aux, states, rtol=1e-5, atol=1e-5)
    assert metrics.graph_prefills == 5
    assert captures(capturer) == 3 * 4  # sizes, and a segment more than there are layers
    assert metrics.capture_pauses == 3
    assert metrics.capture_pause_seconds > 0


def test_a_second_chunk_reads_the_first_ones_kv() -> None:
    first, second = prompts(13, 2, seed=4), prompts(6, 9, before=(13, 2), seed=5)
    bench = Bench.make()
    passes, *_ = piecewise(bench)
    run(passes, bench.attention, first)
    hidden, _ = run(passes, bench.attention, second)
    wanted, _, other = expected(second, first)
    torch.testing.assert_close(hidden, wanted, rtol=1e-5, atol=1e-5)
    same_kv(bench, other)


@torch.inference_mode()
def test_passes_of_two_lanes_may_be_in_progress_at_once() -> None:
    bench = Bench.make()
    passes, *_ = piecewise(bench)
    halves = prompts(7, seed=6), prompts(5, seed=7, first_row=2)
    attentions = bench.attention, Bench.attention_of(type(bench.attention), bench.model)
    running = []
    for lane, (batch, attention) in enumerate(zip(halves, attentions, strict=True)):
        attention.init_forward_metadata(batch)
        running.append(passes.begin(batch, attention.ops, lane))
    calls = [next(one) for one in running]
    results: list[tuple[Tensor, Tensor | None]] = []
    while len(results) < 2:
        for lane, one in enumerate(running):
            call = calls[lane]
            attended = attentions[lane].forward(call.q, call.k, call.v, call.kv, halves[lane])
            try:
                calls[lane] = one.send(attended)
            except StopIteration as end:
                results.append(end.value)
    for batch, (hidden, _) in zip(halves, results, strict=True):
        torch.testing.assert_close(hidden, expected(batch)[0], rtol=1e-5, atol=1e-5)


def test_everything_is_captured_at_start_for_each_lane() -> None:
    """B6: no pass of a captured size captures anything any more."""
    bench = Bench.make()
    passes, capturer, metrics = piecewise(bench)
    second = Bench.attention_of(type(bench.attention), bench.model)
    told: list[tuple[int, int]] = []
    passes.prepare((bench.attention, second), CPU, lambda what, done, total: told.append((done, total)))
    assert captures(capturer) == 2 * 3 * 4
    assert told == [(i, 6) for i in range(7)]
    assert bench.padding_is_finite()
    for lane, attention in enumerate((bench.attention, second)):
        for batch in CHUNKS:
            with torch.inference_mode():
                attention.init_forward_metadata(batch)
                drive(passes.begin(batch, attention.ops, lane), attention, batch)
    assert captures(capturer) == 2 * 3 * 4
    assert metrics.graph_prefills == 10
    assert metrics.capture_pauses == 0
    assert "prefill pieces" in capturer.costs


def test_results_of_all_sizes_lie_in_one_place_outside_of_graph_memory() -> None:
    """Head and drafter read what a pass returned, and their own graphs may run before they have."""
    bench = Bench.make()
    passes, *_ = piecewise(bench)
    places = set()
    for batch in CHUNKS:
        hidden, aux = run(passes, bench.attention, batch)
        places.add((hidden.data_ptr(), aux.data_ptr()))
        assert hidden.untyped_storage().nbytes() == SIZES.sizes[-1] * hidden.shape[1] * 4
    assert len(places) == 1


def test_memory_that_nobody_wrote_does_not_reach_the_padding_page() -> None:
    """A masked softmax turns a NaN there into one everywhere."""
    with uninitialised_is_nan():
        bench = Bench.make()
        passes, *_ = piecewise(bench)
        for batch in CHUNKS:
            run(passes, bench.attention, batch)
    assert bench.padding_is_finite()


def test_sizes_above_the_largest_run_eagerly_are_counted_and_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench.make()
    passes, capturer, metrics = piecewise(bench)
    for _ in range(3):
        hidden, _ = run(passes, bench.attention, prompts(20, 5))
    torch.testing.assert_close(hidden, expected(prompts(20, 5))[0], rtol=1e-5, atol=1e-5)
    assert (metrics.eager_prefills, metrics.graph_prefills, captures(capturer)) == (3, 0, 0)
    assert caplog.text.count("25 tokens fits no captured size (pcg.buckets: 8, 16, 24)") == 1


def test_passes_that_are_no_prefill_begin_as_before() -> None:
    bench = Bench.make()
    passes, capturer, metrics = piecewise(bench)
    decode = replace(prompts(1, 1), mode=Mode.VERIFY, width=1)
    hidden, _ = run(passes, bench.attention, decode)
    with torch.inference_mode():
        torch.testing.assert_close(hidden, Bench.make().eager(decode)[0])
    assert (metrics.graph_prefills, metrics.eager_prefills, captures(capturer)) == (0, 0, 0)


def test_reading_a_value_between_attention_calls_fails_when_it_is_captured() -> None:
    bench = Bench.make()
    ops = bench.attention.ops
    silu = ops.silu_mul
    vars(ops)["silu_mul"] = lambda x: silu(x) * (1 if float(x.sum()) else 2)
    passes, *_ = piecewise(bench)
    with pytest.raises(InternalError, match="reads a device value on the host"):
        passes.prepare((bench.attention,), CPU, silent)
