"""The same engine on a CUDA device: equal answers on every path, and a host that never waits in a launch."""

from __future__ import annotations

import pytest
import torch
from support.engines import TINY, answers, make, run
from support.waits import forbid_waits

from engine.params import SamplingParams

pytestmark = pytest.mark.gpu

PROMPTS = [[(7 * i + j) % 251 for j in range(3 + 11 * i)] for i in range(12)]
FP32 = (*TINY, "device=cuda")
SAMPLINGS = {
    "greedy": SamplingParams(max_tokens=40, ignore_eos=True),
    "seeded": SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.8, top_p=0.9, seed=7),
    # seeds whose coins stay 1e-5 away from every edge of the distribution: devices may differ by 1e-7
    "penalised": SamplingParams(
        max_tokens=40, temperature=0.7, seed=10, repetition_penalty=1.3, min_tokens=9
    ),
}
PATHS = {
    "triton": ("attention=triton",),
    "triton serial": ("attention=triton", "overlap=none"),
    "triton, page 1, chunk 16": ("attention=triton", "cache.page_size=1", "scheduler.chunk_tokens=16"),
    "triton, page 64": ("attention=triton", "cache.page_size=64", "scheduler.max_running=5"),
    "torch": ("attention=torch",),
    "debug": ("attention=triton", "overlap.debug=true"),
}


@pytest.fixture(autouse=True)
def _no_tf32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("path", PATHS)
def test_cuda_answers_equal_the_cpu_reference(path: str, sampling: str) -> None:
    params = SAMPLINGS[sampling]
    reference = run(
        PROMPTS, params, *TINY, "device=cpu", "overlap=none", "cache=none", "scheduler.max_running=1"
    )
    assert run(PROMPTS, params, *FP32, *PATHS[path]) == reference


def test_retraction_on_cuda() -> None:
    params = SAMPLINGS["greedy"]
    options = ("attention=triton", "cache.tokens=320", "cache.max_context=192", "scheduler.headroom=0")
    with make(*FP32, *options, "sampling.max_tokens=9") as llm:
        found = answers(llm.generate(PROMPTS, params))
        assert llm.metrics.retractions > 0
        llm.check()
    assert found == run(PROMPTS, params, *FP32, "attention=triton")


def test_bf16_runs_and_ends() -> None:
    found = run(
        PROMPTS, SAMPLINGS["greedy"], "model=tiny", "model.dtype=bfloat16", "device=cuda", "attention=triton"
    )
    assert [len(ids) for ids, _, _ in found] == [40] * len(PROMPTS)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_no_launch_waits_for_the_device(monkeypatch: pytest.MonkeyPatch, sampling: str) -> None:
    """Y1: from preparing to launching, a call that would synchronise raises."""
    forbid_waits(monkeypatch)
    with make(*FP32, "attention=triton", "overlap=future") as llm:
        llm.generate(PROMPTS, SAMPLINGS[sampling])
        before = llm.metrics.snapshot()
        llm.generate(PROMPTS, SAMPLINGS[sampling])
        after = llm.metrics.snapshot()
    steps = after["decode_steps"] - before["decode_steps"]
    waits = after["host_waits"] - before["host_waits"]
    assert steps >= 39
    assert waits <= 2, "only where a run begins or drains is no later step queued"
