"""Graphs change no answer: every draft algorithm and sampling, both loops; batches grow, shrink and pad."""

from __future__ import annotations

import pytest
from graph_cases import BASE, PLAIN, drafting, params, reference, same, samples
from support.static_attention import HostPlanned, ids, static_engine

from engine.params import SamplingParams

DRAFTERS = ("none", "ngram", "chain", "tree", "eagle3", "eagle3 tree")
STEP = ("graph=step", "graph.capture_after=0")
FORWARD = ("graph=forward", "graph.capture_after=0")


@pytest.mark.parametrize("sampling", ["greedy", "mixed"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_step_graphs(drafter: str, sampling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides, parts = drafting(drafter, monkeypatch)
    with static_engine(*BASE, *STEP, *overrides, "overlap.debug=true", parts=parts) as llm:
        found = samples(llm, sampling)
        assert llm.metrics.eager_decode_steps == 0
        assert llm.metrics.decode_steps > 0
        if sampling == "greedy":
            least = {"none": 0, "ngram": 1}.get(drafter, 9)
            assert llm.metrics.accepted_drafts >= least
    same(found, reference(sampling))


@pytest.mark.parametrize("drafter", ["none", "chain", "eagle3 tree"])
def test_step_graphs_in_the_serial_loop(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides, parts = drafting(drafter, monkeypatch)
    with static_engine(*BASE, *STEP, *overrides, "overlap=none", parts=parts) as llm:
        same(samples(llm, "mixed"), reference("mixed"))
        assert llm.metrics.eager_decode_steps == 0


@pytest.mark.parametrize("drafter", ["none", "chain", "tree", "eagle3"])
def test_stop_ids_inside_accepted_runs(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides, parts = drafting(drafter, monkeypatch)
    with static_engine(*BASE, *STEP, *overrides, parts=parts) as llm:
        found = samples(llm, "stops")
    same(found, reference("stops"))
    assert sum(sample.finish_reason == "stop" for sample in found) >= 4


@pytest.mark.parametrize("attention", ["StaticAttention", "HostPlanned"])
@pytest.mark.parametrize("drafter", ["none", "ngram", "tree", "eagle3"])
def test_forward_graphs(drafter: str, attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """HostPlanned plans every pass from exact host lengths, outside of the graphs."""
    overrides, parts = drafting(drafter, monkeypatch)
    planned = HostPlanned.planned
    with static_engine(*BASE, *FORWARD, *overrides, attention=attention, parts=parts) as llm:
        same(samples(llm, "mixed"), reference("mixed"))
        assert llm.metrics.eager_decode_steps == 0
        needs, causes = llm._container.needs_lens()
        assert needs == (attention == "HostPlanned"), causes
        assert set(llm.metrics.captures) == (
            {"forward", "propose", "observe"}
            if drafter == "eagle3" and attention == "StaticAttention"
            else {"forward"}
        )
        if attention == "HostPlanned":
            assert HostPlanned.planned - planned >= llm.metrics.decode_steps


@pytest.mark.parametrize("drafter", ["none", "chain"])
def test_forward_graphs_over_torch_attention(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """attention=torch sizes its gathers by the bounds: one graph for each power of two."""
    overrides, parts = drafting(drafter, monkeypatch)
    with static_engine(*BASE, *FORWARD, *overrides, attention="TorchSDPA", parts=parts) as llm:
        same(samples(llm, "mixed"), reference("mixed"))
        assert llm.metrics.eager_decode_steps == 0
        assert not llm._container.needs_lens()[0]


@pytest.mark.parametrize("graph", ["step", "forward"])
def test_retraction(graph: str) -> None:
    """Requests leave the table in the middle of their answers and come back into other rows."""
    prompts = [[(11 * i + j) % 200 for j in range(20)] for i in range(5)]
    wanted = SamplingParams(max_tokens=30, ignore_eos=True, temperature=0.9, seed=4)
    small = (*BASE, "cache.tokens=112", "scheduler.headroom=0")
    with static_engine(*PLAIN) as llm:
        plain = ids(llm, prompts, wanted)
    with static_engine(*small, f"graph={graph}", "graph.capture_after=0") as llm:
        assert ids(llm, prompts, wanted) == plain
        assert llm.metrics.retractions > 0
        assert llm.metrics.eager_decode_steps == 0


def test_the_references_are_worth_comparing_with() -> None:
    assert len(params("greedy")) == len(reference("greedy")) == 6
    runs = {name: [sample.token_ids for sample in reference(name)] for name in ("greedy", "mixed", "stops")}
    assert len(set(runs["greedy"])) == 6
    assert sum(a != b for a, b in zip(runs["greedy"], runs["mixed"], strict=True)) >= 3
    assert sum(map(len, runs["stops"])) < sum(map(len, runs["greedy"]))
