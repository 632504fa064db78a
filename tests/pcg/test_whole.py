"""A whole prefill pass from one graph: bounds size it, the device's own lengths decide what it computes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pcg_cases import CPU, PAGE, PAGES, Bench, prompts, uninitialised_is_nan
from support.captures import captures
from torch import Tensor

from backends.triton import TritonAttention
from engine.batch import ForwardBatch, LayerKV, Mode
from engine.graphs.capture import CpuCapturer
from engine.metrics import EngineMetrics
from engine.models.source import silent
from engine.passes import OneBatch
from engine.prefill_graphs.buckets import Buckets, request_counts
from engine.prefill_graphs.whole import Limits, WholePrefill

PASSES = [
    prompts(8),
    prompts(1),
    prompts(3, 5, 7, seed=1),
    prompts(9, 1, before=(4, 20), seed=2, first_row=4),
    prompts(1, 1, 1, 1, seed=3),
]


def whole(bench: Bench, sizes: tuple[int, ...] = (8, 16)) -> tuple[WholePrefill, CpuCapturer, EngineMetrics]:
    capturer, metrics = CpuCapturer(), EngineMetrics()
    limits = Limits((2, 4), PAGE * PAGES, PAGE * PAGES, PAGE)
    inner = OneBatch(bench.passes, bench.attention)
    return WholePrefill(inner, Buckets(sizes), limits, capturer, metrics), capturer, metrics


@torch.inference_mode()
def expected(batch: ForwardBatch) -> tuple[Tensor, Tensor, Bench]:
    bench = Bench.make()
    hidden, aux = bench.eager(batch)
    assert aux is not None
    return hidden, aux, bench


@torch.inference_mode()
def test_replayed_passes_equal_eager_ones_in_any_order() -> None:
    bench = Bench.make(TritonAttention)
    driver, capturer, metrics = whole(bench)
    with uninitialised_is_nan():
        for batch in (*PASSES, PASSES[2], PASSES[0]):
            wanted, states, _ = expected(batch)
            hidden, aux = driver.run(batch)
            assert aux is not None
            torch.testing.assert_close(hidden, wanted, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(aux, states, rtol=1e-4, atol=1e-4)
    assert bench.padding_is_finite()
    assert metrics.graph_prefills == 7
    assert captures(capturer) == 4  # (8, 2), (16, 4), (16, 2), (8, 4)
    assert metrics.capture_pauses == 4
    assert metrics.prefill_padding == 2 * 0 + 7 + 2 * 1 + 6 + 4


class OnlyTheAsked(TritonAttention):
    """NaN for tokens that belong to no request, as memory of a graph may hold it."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, kv: LayerKV, batch: ForwardBatch) -> Tensor:
        out = super().forward(q, k, v, kv, batch)
        asked = torch.arange(out.shape[0]).unsqueeze(1) < batch.query_start[-1:]
        return torch.where(asked, out, float("nan"))


@torch.inference_mode()
def test_padding_tokens_belong_to_a_request_too() -> None:
    """Their KV lies in the padding page, where a NaN would spread through every masked softmax."""
    bench = Bench.make(OnlyTheAsked)
    driver, *_ = whole(bench)
    driver.prepare(CPU, silent)
    assert bench.padding_is_finite()
    for batch in PASSES:
        driver.run(batch)
        assert bench.padding_is_finite()


@torch.inference_mode()
def test_kv_goes_to_the_pages_of_the_requests() -> None:
    bench = Bench.make(TritonAttention)
    driver, *_ = whole(bench)
    driver.run(PASSES[3])
    _, _, other = expected(PASSES[3])
    for mine, theirs in zip(bench.pool.layers, other.pool.layers, strict=True):
        torch.testing.assert_close(mine.k[PAGE:], theirs.k[PAGE:], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mine.v[PAGE:], theirs.v[PAGE:], rtol=1e-4, atol=1e-4)


def test_every_size_is_captured_at_start() -> None:
    bench = Bench.make(TritonAttention)
    driver, capturer, _ = whole(bench, (8,))
    with uninitialised_is_nan():
        driver.prepare(CPU, silent)
    assert captures(capturer) == 2
    assert bench.padding_is_finite()
    with torch.inference_mode():
        driver.run(PASSES[0])
        driver.run(PASSES[4])
    assert captures(capturer) == capturer.costs["prefill"].captures == 2


@torch.inference_mode()
def test_what_fits_no_size_runs_eagerly() -> None:
    bench = Bench.make(TritonAttention)
    driver, capturer, metrics = whole(bench, (8,))
    hidden, _ = driver.run(PASSES[2])
    torch.testing.assert_close(hidden, expected(PASSES[2])[0], rtol=1e-4, atol=1e-4)
    assert (metrics.eager_prefills, metrics.graph_prefills, captures(capturer)) == (1, 0, 0)
    assert driver.attentions() == (bench.attention,)


@pytest.mark.parametrize(
    ("asked", "running", "counts"),
    [
        ("auto", 64, (1, 8, 64)),
        ("auto", 5, (1, 5)),
        ("auto", 1, (1,)),
        ((4, 200), 64, (4, 64)),
        ((64,), 64, (64,)),
    ],
)
def test_the_largest_batch_is_always_captured(
    asked: str | tuple[int, ...], running: int, counts: tuple[int, ...]
) -> None:
    assert request_counts(asked, running) == counts


def test_a_decode_pass_is_not_its_business() -> None:
    bench = Bench.make(TritonAttention)
    driver, capturer, metrics = whole(bench)
    with torch.inference_mode():
        hidden, _ = driver.run(replace(prompts(1, 1), mode=Mode.VERIFY, width=1))
        wanted, _ = Bench.make().eager(replace(prompts(1, 1), mode=Mode.VERIFY, width=1))
    torch.testing.assert_close(hidden, wanted, rtol=1e-4, atol=1e-4)
    assert (metrics.graph_prefills, captures(capturer)) == (0, 0)
