"""Graphs on a CUDA device: equal answers, a host that never waits, memory that does not grow."""

from __future__ import annotations

import pytest
import torch
from graph_cases import CHAIN, KINDS, LENGTHS, PROMPTS, TREE, same, table
from support.device_drafters import Follower, teach_drafts
from support.engines import TINY, make
from support.waits import forbid_waits

from engine.answers import Completion
from engine.graphs.capture import make_capturer
from engine.llm import LLM
from engine.metrics import rates
from engine.params import SamplingParams

pytestmark = pytest.mark.gpu

PLAIN = (*TINY, "device=cuda", "cache.max_context=512", "scheduler.max_running=6")
CUDA = (*PLAIN, "attention=triton")
GRAPHS = ("graph.sizes=[1,2,4,6]", "graph.capture_after=0")
DRAFTERS = ("none", "ngram", "chain", "tree", "eagle3", "eagle3 tree")
LONG = SamplingParams(max_tokens=220, ignore_eos=True)


@pytest.fixture(autouse=True)
def _no_tf32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


def drafting(case: str, monkeypatch: pytest.MonkeyPatch) -> tuple[tuple[str, ...], dict[str, object]]:
    known = table().cuda()
    if case.startswith("eagle3"):
        teach_drafts(monkeypatch, known)
        return (TREE if case == "eagle3 tree" else CHAIN), {}
    if case in ("chain", "tree"):
        return (), {"speculator": Follower(known, drafts=3, tree=case == "tree")}
    return {"none": (), "ngram": ("spec=ngram", "spec.adaptive=false", "spec.drafts=3")}[case], {}


def requests(sampling: str) -> list[SamplingParams]:
    kinds = KINDS if sampling == "mixed" else [{}] * len(KINDS)
    return [
        SamplingParams(max_tokens=4 * n, ignore_eos=True, **kind)
        for n, kind in zip(LENGTHS, kinds, strict=True)
    ]


def samples(llm: LLM, sampling: str) -> tuple[Completion, ...]:
    outputs = llm.generate(PROMPTS, requests(sampling))
    llm.check()
    return tuple(output.completions[0] for output in outputs)


@pytest.mark.parametrize("sampling", ["greedy", "mixed"])
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("graph", ["step", "forward"])
def test_graphs_change_no_answer(
    graph: str, drafter: str, sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(*CUDA, "overlap=none") as llm:
        wanted = samples(llm, sampling)
    for loop in ("none", "future"):
        overrides, parts = drafting(drafter, monkeypatch)
        options = (*GRAPHS, f"graph={graph}", f"overlap={loop}", *overrides)
        with make(*CUDA, *options, parts=parts) as llm:
            for _ in range(2):  # the second time nothing is captured
                same(samples(llm, sampling), wanted)
            assert llm.metrics.eager_decode_steps == 0


def test_forward_graphs_over_torch_attention() -> None:
    with make(*PLAIN, "attention=torch", "overlap=none") as llm:
        wanted = samples(llm, "mixed")
    with make(*PLAIN, "attention=torch", *GRAPHS, "graph=forward") as llm:
        same(samples(llm, "mixed"), wanted)
        assert llm.metrics.eager_decode_steps == 0


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("graph", ["step", "forward"])
def test_no_decode_step_waits_for_the_device(
    graph: str, drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From preparing to launching, a call that would synchronise raises; and in steady state a step is always
    queued behind the one that is waited for."""
    overrides, parts = drafting(drafter, monkeypatch)
    options = (*GRAPHS, f"graph={graph}", "overlap=future", *overrides)
    with make(*CUDA, *options, parts=parts) as llm:
        samples(llm, "mixed")
        forbid_waits(monkeypatch)
        before = llm.metrics.snapshot()
        samples(llm, "mixed")
        after = llm.metrics.snapshot()
    grown = {name: after[name] - before[name] for name in after}
    assert grown["decode_steps"] >= 20
    assert grown["capture_pauses"] == 0
    assert grown["eager_decode_steps"] == 0
    assert grown["host_waits"] <= 2, "only where a run begins or drains is no later step queued"
    occupancy = rates(grown)["forward_occupancy"]
    assert occupancy is not None
    assert 0 < occupancy <= 1.05


@pytest.mark.parametrize("graph", ["step", "forward"])
def test_memory_does_not_grow_over_replays(graph: str) -> None:
    """200 steps and more: what is allocated afterwards is what was before, and nothing was reserved."""
    with make(*CUDA, *GRAPHS, f"graph={graph}", "cache=none") as llm:
        llm.generate(PROMPTS, LONG)
        llm._container.queue().synchronize()
        before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        steps = llm.metrics.decode_steps
        llm.generate(PROMPTS, LONG)
        llm._container.queue().synchronize()
        after = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        assert llm.metrics.decode_steps - steps >= 200
        assert abs(after[0] - before[0]) < 1 << 20
        assert after[1] == before[1]


def test_captures_have_a_cost_in_memory_and_time() -> None:
    """G6: seconds and bytes by phase; a small model's graphs are captured in no time."""
    with make(*CUDA, "graph=step") as llm:
        cost = llm.metrics.captures["step"]
        assert cost.captures == len(llm.captured_sizes) == 4
        assert 0 < cost.seconds < 30
        assert 0 < cost.bytes < 1 << 30


def test_a_capture_that_fails_says_why_and_the_device_lives_on() -> None:
    device = torch.device("cuda")
    capturer, place = make_capturer(device), torch.ones(4, device=device)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        with pytest.raises(RuntimeError):
            capturer.capture(lambda: place.sum().item())
        (place + 1).sum().item()  # warms up, on this stream
        graph, result = capturer.capture(lambda: (place + 1).sum())
        place.fill_(2)
        graph.replay()
        assert result.item() == 12
