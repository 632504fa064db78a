"""Drafters on a CUDA device: answers of plain decoding, whatever drafts; and no launch that waits."""

from __future__ import annotations

import pytest
import torch
from support.engines import TINY, make, run
from support.waits import forbid_waits

from engine.params import SamplingParams

pytestmark = pytest.mark.gpu

PROMPTS = [[(7 * i + j) % 251 for j in range(3 + 11 * i)] for i in range(12)] + [[5, 6, 7] * 20]
FP32 = (*TINY, "device=cuda", "attention=triton")
SAMPLINGS = {
    "greedy": SamplingParams(max_tokens=40, ignore_eos=True),
    "seeded": SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.8, top_p=0.9, seed=7),
    "penalised": SamplingParams(
        max_tokens=40, temperature=0.7, seed=10, repetition_penalty=1.3, min_tokens=9
    ),
}
EAGLE3 = ("spec=eagle3", "spec.load=dummy", "spec.adaptive=false")
DRAFTERS = {
    "ngram": ("spec=ngram", "spec.adaptive=false", "spec.drafts=4"),
    "ngram adaptive": ("spec=ngram", "spec.min_match=1"),
    "ngram tree": ("spec=ngram", "spec.adaptive=false", "spec.drafts=3", "spec.branches=3"),
    "eagle3 chain": EAGLE3,
    "eagle3 tree": (*EAGLE3, "spec.num_steps=4", "spec.topk=4", "spec.num_draft_tokens=12"),
    "eagle3 1/1/2": (*EAGLE3, "spec.num_steps=1", "spec.num_draft_tokens=2"),
    "eagle3, torch draft": (*EAGLE3, "attention@spec.draft_attention=torch"),
}
OPTIONS = {
    "": (),
    "page 1": ("cache.page_size=1", "scheduler.chunk_tokens=16"),
    "page 64": ("cache.page_size=64", "scheduler.max_running=5"),
    "debug": ("overlap.debug=true",),
    "serial": ("overlap=none",),
}


@pytest.fixture(autouse=True)
def _no_tf32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_drafters_change_nothing_on_cuda(drafter: str, sampling: str, options: str) -> None:
    params = SAMPLINGS[sampling]
    reference = run(
        PROMPTS, params, *TINY, "device=cpu", "overlap=none", "cache=none", "scheduler.max_running=1"
    )
    assert run(PROMPTS, params, *FP32, *OPTIONS[options], *DRAFTERS[drafter]) == reference


@pytest.mark.parametrize("drafter", [name for name in DRAFTERS if "torch" not in name])
def test_no_launch_waits_for_the_device(monkeypatch: pytest.MonkeyPatch, drafter: str) -> None:
    """Y1, Y3: from preparing to launching, draft passes and draft-extend included, a call that would
    synchronise raises."""
    forbid_waits(monkeypatch)
    with make(*FP32, "overlap=future", *DRAFTERS[drafter]) as llm:
        llm.generate(PROMPTS, SAMPLINGS["greedy"])
        before = llm.metrics.snapshot()
        llm.generate(PROMPTS, SAMPLINGS["greedy"])
        after = llm.metrics.snapshot()
    assert after["decode_steps"] - before["decode_steps"] >= 8
    waits = after["host_waits"] - before["host_waits"]
    assert waits <= 2, "only where a run begins or drains is no later step queued"
