"""When graphs are captured, what that leaves behind, and what runs outside of them."""

from __future__ import annotations

import logging

import pytest
import torch
from graph_cases import BASE, PLAIN, drafting, reference, same, samples, table
from support.captures import captures
from support.device_drafters import Follower
from support.drafters import Scripted
from support.static_attention import ids, static_engine

from engine.errors import InternalError
from engine.graphs.capture import CpuCapturer
from engine.graphs.hesitation import MOST_GRAPHS, Hesitation
from engine.graphs.whole_step import GraphedStep, Kind
from engine.llm import LLM
from engine.metrics import EngineMetrics
from engine.params import SamplingParams
from engine.sampling.asked import SamplingClass
from speculative.width import WidthChoice, WidthPolicy

GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)


def kinds(llm: LLM) -> set[Kind]:
    """What is captured in a graph=step engine."""
    step = llm._container.step()._inner
    assert isinstance(step, GraphedStep)
    return set(step._graphs)


def test_greedy_at_the_usual_width_is_captured_at_start() -> None:
    with static_engine(*BASE, "graph=step", "spec=ngram", "spec.adaptive=false", "spec.drafts=2") as llm:
        assert llm.captured_sizes == (4, 2, 1), "the largest first: the others fit into its memory"
        assert kinds(llm) == {Kind(n, 3, False, SamplingClass()) for n in (1, 2, 4)}
        cost = llm.metrics.captures["step"]
        assert (cost.captures, cost.bytes) == (3, 0)
        assert cost.seconds > 0
        assert llm.metrics.capture_pauses == 0, "nobody waits yet"


@pytest.mark.parametrize("graph", ["step", "forward"])
def test_captures_at_start_leave_no_trace(graph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides, parts = drafting("eagle3 tree", monkeypatch)
    states = []
    for options in (PLAIN, (*BASE, f"graph={graph}")):
        with static_engine(*options, *overrides, "overlap.debug=true", parts=parts) as llm:
            held = llm._container.table()
            pools = llm._container.pool(), llm._container.draft_pool()
            columns = held.columns
            state = [held.tokens, held.seq_lens, held.page_table, *held.relay.values()]
            state += [side for pool in pools for layer in pool.layers for side in (layer.k, layer.v)]
            states.append([*state, columns.output_counts, columns.stop_ids])
    for eager, graphed in zip(*states, strict=True):
        assert torch.equal(eager, graphed)


@pytest.mark.parametrize("patience", [0, 3])
def test_other_classes_are_captured_once_they_come_often(patience: int) -> None:
    seeded = SamplingParams(max_tokens=10, ignore_eos=True, temperature=0.9, seed=1)
    with static_engine(*PLAIN) as llm:
        plain = ids(llm, [[1, 2, 3]], seeded)
    with static_engine(*BASE, "graph=step", f"graph.capture_after={patience}") as llm:
        found = ids(llm, [[1, 2, 3]], seeded)
        assert found == plain, "the step of the capture counts like any other"
        metrics = llm.metrics
        assert metrics.eager_decode_steps == patience
        assert metrics.capture_pauses == 1
        assert metrics.capture_pause_seconds > 0
        assert Kind(1, 1, False, SamplingClass(sampled=True)) in kinds(llm)
        assert len(kinds(llm)) == 4
        assert ids(llm, [[1, 2, 3]], seeded) == plain
        assert (metrics.eager_decode_steps, metrics.capture_pauses) == (patience, 1)


def test_batches_larger_than_all_sizes_run_eagerly_and_are_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """G2, M6: the answers are right, one warning, a count."""
    prompts = [[i, i + 1, 3] for i in range(20)]
    options = ("model.layers=2", "cache.max_context=64", "sampling.max_tokens=8", "scheduler.max_running=20")
    with static_engine(*options) as llm:
        plain = ids(llm, prompts, GREEDY)
    caplog.set_level(logging.WARNING, "syncless")
    with static_engine(*options, "graph=step", "graph.sizes=[1,8]") as llm:
        assert ids(llm, prompts, GREEDY) == plain
        assert llm.metrics.eager_decode_steps == llm.metrics.decode_steps > 5
    told = [record.message for record in caplog.records if "eager_decode_steps" in record.message]
    assert len(told) == 1
    assert "20 requests" in told[0]
    assert "ends at 8" in told[0]


def test_the_largest_running_batch_is_always_captured() -> None:
    """G3: scheduler.max_running=7 is no round number."""
    with static_engine("cache.max_context=64", "sampling.max_tokens=4", "model.layers=1",
                       "scheduler.max_running=7", "graph=step") as llm:  # fmt: skip
        assert llm.captured_sizes == (7, 4, 2, 1)
        ids(llm, [[i, 2] for i in range(7)], SamplingParams(max_tokens=4, ignore_eos=True))
        assert llm.metrics.peak_running == 7
        assert llm.metrics.eager_decode_steps == 0


def test_a_step_wider_than_the_context_is_captured() -> None:
    """G4: the rows of a capture hold fewer tokens than the step has drafts; nothing reads past them."""
    drafter = Follower(table(), drafts=7)
    tiny = ("model.layers=1", "cache.max_context=16", "sampling.max_tokens=4", "cache.page_size=1")
    wanted = SamplingParams(max_tokens=10, ignore_eos=True)
    with static_engine(*tiny, "graph=none") as llm:
        plain = ids(llm, [[5, 6, 7]], wanted)
    options = ("scheduler.max_running=2", "graph=step")
    with static_engine(*tiny, *options, "overlap.debug=true", parts={"speculator": drafter}) as llm:
        assert ids(llm, [[5, 6, 7]], wanted) == plain
        assert llm.metrics.eager_decode_steps == 0


def test_a_padded_batch_grows_into_a_captured_size() -> None:
    """G7: 3 requests padded to 4, then 4, and back."""
    with static_engine(*PLAIN) as llm:
        plain = ids(llm, [[i, 9, 2] for i in range(4)], GREEDY)
    with static_engine(*BASE, "graph=step") as llm:
        for count in (3, 4, 3, 4):
            assert ids(llm, [[i, 9, 2] for i in range(count)], GREEDY) == plain[:count]
        assert llm.metrics.eager_decode_steps == 0
        assert llm.metrics.capture_pauses == 0


class Swinging(WidthPolicy):
    """Another width every step."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        self.widest = max(widths)
        self._widths, self._at = widths, 0

    def choose(self, records, declined: int = 0) -> WidthChoice:
        self._at += 1
        return WidthChoice(self._widths[self._at % len(self._widths)])


def test_widths_that_swing_settle_into_graphs() -> None:
    """G8: crossing a threshold again and again neither captures again nor falls back to eager steps."""
    parts = {"speculator": Follower(table(), drafts=4), "widths": Swinging((5, 1, 3))}
    with static_engine(*BASE, "graph=step", "graph.capture_after=1", parts=parts) as llm:
        for _ in range(8):
            same(samples(llm, "greedy"), reference("greedy"))
            if len(kinds(llm)) == 3 * 3:  # every width at every size
                break
        seen = llm.metrics.snapshot()
        same(samples(llm, "greedy"), reference("greedy"))
        later = llm.metrics.snapshot()
    assert seen["capture_pauses"] == 6, "those of the usual width were captured at start"
    for name in ("capture_pauses", "eager_decode_steps"):
        assert later[name] == seen[name], name
    assert later["decode_steps"] > seen["decode_steps"] + 5


@pytest.mark.parametrize("graph", ["step", "forward"])
def test_adaptive_widths_are_judged_by_graphed_steps(graph: str) -> None:
    """The cost table is measured on what will run, so its measurement captures every width."""
    options = ("spec=ngram", "spec.drafts=2", "spec.branches=1", "step_costs=measure")
    with static_engine(*BASE, f"graph={graph}", *options) as llm:
        assert llm.step_costs is not None
        measured = set(llm.step_costs.seconds)
        assert {1, 2, 3} == {width for _, width in measured}
        assert llm.metrics.eager_decode_steps == 0
        assert llm.metrics.capture_pauses == 0
        assert llm.metrics.captures[graph].captures == len(measured | {(size, 3) for size in (1, 2, 4)})
        same(samples(llm, "greedy"), reference("greedy"))


def test_a_step_that_reads_a_device_value_is_refused() -> None:
    """The stand-in for CUDA refuses what CUDA would: this drafter asks the device for its rows."""
    drafter = Scripted({}, 512, drafts=2, script="wrong")
    with pytest.raises(InternalError, match="host inside a graph"):
        static_engine(*BASE, "graph=step", parts={"speculator": drafter})


def test_stages_within_a_graph_are_not_timed_and_it_is_said() -> None:
    with static_engine(*BASE, "graph=step", "spec=ngram") as llm:
        llm.metrics.stages.on = True
        samples(llm, "greedy")
        assert llm.metrics.stages.seconds() == {}
        assert "one launch" in llm.metrics.stages.hidden
    with static_engine(*BASE, "graph=forward", "spec=ngram") as llm:
        llm.metrics.stages.on = True
        samples(llm, "greedy")
        assert set(llm.metrics.stages.seconds()) == {"step", "draft", "verify", "learn"}


def test_graphs_do_not_grow_without_end(caplog: pytest.LogCaptureFixture) -> None:
    hesitation = Hesitation(0, 8, EngineMetrics(), lambda: True)
    assert hesitation.worth_it("kind", MOST_GRAPHS - 1)
    caplog.set_level(logging.WARNING, "syncless")
    assert not any(hesitation.worth_it("kind", MOST_GRAPHS) for _ in range(3))
    assert len(caplog.records) == 1


def test_no_graph_is_made_where_no_memory_is_left(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "syncless")
    with static_engine(*PLAIN) as llm:
        plain = ids(llm, [[4, 5]], GREEDY)
    capturer = CpuCapturer()
    vars(capturer)["has_room"] = lambda: captures(capturer) < 2
    with static_engine(*BASE, "graph=step", parts={"capturer": capturer}) as llm:
        assert {kind.size for kind in kinds(llm)} == {2, 4}, "the largest came first"
        assert ids(llm, [[4, 5]], GREEDY) == plain
        assert llm.metrics.eager_decode_steps == llm.metrics.decode_steps
    told = [record.message for record in caplog.records if "no memory left" in record.message]
    assert len(told) == 1
    assert "cache.tokens" in told[0]


def test_at_start_nothing_waits_for_patience_and_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    metrics = EngineMetrics()
    caplog.set_level(logging.WARNING, "syncless")
    hesitation = Hesitation(5, 8, metrics, lambda: True)
    for serving in (False, True):
        metrics.decode_steps = int(serving)
        with hesitation.at_once():
            assert hesitation.worth_it("kind", 0)
        with hesitation.pause():
            hesitation.too_large(9)
            hesitation.eager()
        assert metrics.capture_pauses == metrics.eager_decode_steps == len(caplog.records) == int(serving)
    assert [hesitation.worth_it("other", 0) for _ in range(7)] == [False] * 5 + [True] * 2
