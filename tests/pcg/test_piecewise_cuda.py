"""Prefill graphs on a CUDA device: the answers of the CPU, no waiting host, memory that sizes share."""

from __future__ import annotations

import gc

import pytest
import torch
from support.engines import TINY, answers, cpu_answers, make

from engine.batch import ScheduledStep
from engine.executor import Executor
from engine.futures import StepHandle
from engine.graphs.capture import CudaCapturer
from engine.params import SamplingParams

pytestmark = pytest.mark.gpu

PROMPTS = [[(7 * i + j) % 251 for j in range(3 + 11 * i)] for i in range(12)]
GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=24, ignore_eos=True, temperature=0.8, top_p=0.9, seed=7)
SAMPLINGS = {"greedy": GREEDY, "seeded": SEEDED}
FP32 = (*TINY, "device=cuda")
DRAFTS = ("spec=eagle3", "spec.load=dummy", "spec.adaptive=false")
LOOKUPS = ("spec=ngram", "spec.adaptive=false", "spec.drafts=3")
PATHS = {
    "triton": ("attention=triton",),
    "lazy": ("attention=triton", "pcg.capture=lazy"),
    "serial": ("attention=triton", "overlap=none"),
    "chunks": ("attention=triton", "scheduler.chunk_tokens=100"),
    "page 1": ("attention=triton", "cache.page_size=1"),
    "torch": ("attention=torch",),
    "eagle3": ("attention=triton", *DRAFTS, "scheduler.chunk_tokens=100"),
    "step graphs": ("attention=triton", "graph=step", "scheduler.max_running=5"),
    "forward graphs": ("attention=torch", "graph=forward", "scheduler.max_running=5"),
    "two batches": ("attention=triton", "tbo=two_batch", "tbo.min_tokens=2"),
    "two batches, drafts, step graphs": (
        "attention=triton", "tbo=two_batch", "tbo.min_tokens=2", *DRAFTS, "graph=step",
        "scheduler.max_running=5",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_tf32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.fixture(scope="module")
def reference():
    return {name: cpu_answers(PROMPTS, params) for name, params in SAMPLINGS.items()}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("path", PATHS)
def test_piecewise_answers_are_those_of_the_cpu(path, sampling, reference):
    with make(*FP32, "pcg=piecewise", *PATHS[path]) as llm:
        assert answers(llm.generate(PROMPTS, SAMPLINGS[sampling])) == reference[sampling]
        assert llm.metrics.graph_prefills > 0
        assert llm.metrics.eager_prefills == 0
        llm.check()


@pytest.mark.parametrize("more", [(), ("pcg.capture=lazy",), (*DRAFTS, "graph=step"), ("overlap=none",)])
def test_full_answers_are_those_of_the_cpu(more, reference):
    with make(*FP32, "attention=triton", "pcg=full", "scheduler.chunk_tokens=200", *more) as llm:
        assert answers(llm.generate(PROMPTS, GREEDY)) == reference["greedy"]
        assert llm.metrics.graph_prefills > 0
        llm.check()


@pytest.mark.parametrize("spec", [DRAFTS, LOOKUPS], ids=["eagle3", "ngram"])
@pytest.mark.parametrize("pcg", ["piecewise", "full"])
def test_no_launch_waits_for_the_device(pcg, spec, monkeypatch):
    """From preparing to launching any step, prefill included, a call that would synchronise raises."""
    launch = Executor.launch

    def watched(self: Executor, step: ScheduledStep) -> StepHandle:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return launch(self, step)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    with make(*FP32, "attention=triton", "overlap=future", f"pcg={pcg}", *spec) as llm:
        llm.generate(PROMPTS, GREEDY)  # what compiles, compiles here
        llm.forget_prefixes()
        monkeypatch.setattr(Executor, "launch", watched)
        before = llm.metrics.snapshot()
        llm.generate(PROMPTS, GREEDY)
        after = llm.metrics.snapshot()
    assert after["graph_prefills"] > before["graph_prefills"]
    assert after["capture_pauses"] == before["capture_pauses"]
    assert after["host_waits"] - before["host_waits"] <= 2, "only where a run begins or drains"


@pytest.mark.parametrize("pcg", ["piecewise", "full"])
def test_bf16_runs_and_padding_stays_finite(pcg):
    with make("model=tiny", "model.dtype=bfloat16", "device=cuda", "attention=triton", f"pcg={pcg}") as llm:
        found = answers(llm.generate(PROMPTS, GREEDY))
        pool, page = llm._container.pool(), llm._container.sizes().page_size
        llm._container.queue().synchronize()
        for layer in pool.layers:
            assert torch.isfinite(layer.k[:page]).all()
            assert torch.isfinite(layer.v[:page]).all()
    assert [len(ids) for ids, _, _ in found] == [24] * len(PROMPTS)


@torch.inference_mode()
def test_a_lent_result_is_the_same_memory_and_does_not_keep_it():
    capturer = CudaCapturer(torch.device("cuda"))
    x = torch.ones(1 << 20, dtype=torch.bfloat16, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        stream.wait_stream(torch.cuda.default_stream())
        (x + 1).view(2, -1)[:, 8:16]
        graph, result = capturer.capture(lambda: (x + 1).view(2, -1)[:, 8:16])
        pointer, strides = result.data_ptr(), result.stride()
        lent = capturer.lend(result)
        del result
        graph.replay()
        assert lent.dtype == torch.bfloat16
        assert (lent.data_ptr(), lent.stride(), lent.shape) == (pointer, strides, (2, 8))
        assert lent.float().tolist() == [[2.0] * 8] * 2
        _, other = capturer.capture(lambda: x * 3)
        assert other.untyped_storage().data_ptr() == lent.untyped_storage().data_ptr()


def test_sizes_share_memory():
    """Ten sizes take little more than the largest alone."""

    def taken(*sizes: int) -> int:
        gc.collect()
        torch.cuda.empty_cache()
        shape = ("model.hidden=1024", "model.heads=16", "model.head_dim=64", "model.intermediate=4096")
        buckets = f"pcg.buckets=[{','.join(map(str, sizes))}]"
        with make(*FP32, "attention=triton", "pcg=piecewise", "model.layers=8", *shape, buckets) as llm:
            return llm._container.capturer().costs["prefill pieces"].bytes

    one, ten = taken(2048), taken(*range(1100, 2049, 100), 2048)
    pass_bytes = 2048 * 4 * (3 * 4096 + 12 * 1024)
    assert one < 3 * pass_bytes
    assert ten - one < 2 * pass_bytes
