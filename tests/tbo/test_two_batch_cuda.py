"""Two batches on a CUDA device: the answers of the CPU with and without graphs, and no waiting host."""

from __future__ import annotations

import pytest
import torch
from support.engines import TINY, answers, cpu_answers, make, run
from support.waits import forbid_waits

from engine.params import SamplingParams

pytestmark = pytest.mark.gpu

PROMPTS = [[(7 * i + j) % 251 for j in range(3 + 11 * i)] for i in range(13)]
GREEDY = SamplingParams(max_tokens=32, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=32, ignore_eos=True, temperature=0.8, top_p=0.9, seed=7)
SAMPLINGS = {"greedy": GREEDY, "seeded": SEEDED}
FP32 = (*TINY, "device=cuda", "tbo=two_batch", "tbo.min_tokens=2")
EAGLE = ("spec=eagle3", "spec.load=dummy", "spec.adaptive=false")
SPECS = {
    "none": (),
    "ngram": ("spec=ngram", "spec.adaptive=false", "spec.drafts=3"),
    "chain": EAGLE,
    "tree": (*EAGLE, "spec.topk=3", "spec.num_steps=3", "spec.num_draft_tokens=9"),
}
GRAPHS = {
    "eager": ("attention=triton",),
    "step": ("attention=triton", "graph=step", "scheduler.max_running=7"),
    "forward": ("attention=triton", "graph=forward", "scheduler.max_running=7"),
    "torch": ("attention=torch",),
    "torch, forward": ("attention=torch", "graph=forward", "scheduler.max_running=7"),
}


@pytest.fixture(autouse=True)
def _no_tf32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.fixture(scope="module")
def reference():
    return {name: cpu_answers(PROMPTS, params) for name, params in SAMPLINGS.items()}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("spec", SPECS)
def test_answers_are_those_of_the_cpu(spec, graph, sampling, reference):
    with make(*FP32, *SPECS[spec], *GRAPHS[graph]) as llm:
        assert answers(llm.generate(PROMPTS, SAMPLINGS[sampling])) == reference[sampling]
        assert llm.metrics.split_passes > 0
        llm.check()


@pytest.mark.parametrize("pcg", ["none", "piecewise"])
@pytest.mark.parametrize("graph", ["eager", "step", "forward"])
@pytest.mark.parametrize("spec", SPECS)
def test_no_launch_waits_for_the_device(spec, graph, pcg, monkeypatch):
    """Y5 and Y1: with drafts, split, one step ahead, nothing asks for host lengths."""
    forbid_waits(monkeypatch)
    with make(*FP32, *SPECS[spec], *GRAPHS[graph], f"pcg={pcg}", "overlap=future") as llm:
        llm.generate(PROMPTS, GREEDY)
        before = llm.metrics.snapshot()
        llm.generate(PROMPTS, GREEDY)
        after = llm.metrics.snapshot()
        assert llm._container.needs_lens()[0] is False
    waits = after["host_waits"] - before["host_waits"]
    assert waits <= 2, "only where a run begins or drains is no later step queued"


def test_a_long_run_under_both_streams_stays_equal():
    """Memory that one stream gives back too early would show here: many steps, batches that shrink."""
    params = [SamplingParams(max_tokens=8 + 9 * i, ignore_eos=True) for i in range(len(PROMPTS))]
    one = run(PROMPTS, params, *TINY, "device=cuda", "attention=triton")
    for _ in range(3):
        assert run(PROMPTS, params, *FP32, "attention=triton", "overlap.debug=true") == one
