"""Step costs in an engine: measured and checked by real steps that leave no trace in it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from dependency_injector.providers import Object
from support.drafters import Scripted, ScriptedTree
from support.engines import TINY, make
from support.static_attention import ids, static_engine

from engine.batch import DraftTree
from engine.calibrate import Gauge
from engine.compose import compose
from engine.container import EngineContainer
from engine.llm import LLM
from engine.params import SamplingParams
from engine.scratch_steps import ScratchSteps
from engine.step_costs import as_document, from_document
from speculative.base import SpecPlan
from speculative.views import DraftView
from speculative.width import StepCosts


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Measured(Scripted):
    """A drafter whose policy asks for costs; its steps write to its relay."""

    def __init__(self, *, drafts: int = 2) -> None:
        super().__init__({}, 512, drafts=drafts, script="wrong")
        self.plan = SpecPlan(width=drafts + 1, measures=(1, 2, drafts + 1))
        self.seen: list[tuple[int, int, bool]] = []

    def propose(self, view: DraftView) -> DraftTree:
        self.seen.append((len(view.rows), view.width, view.resume))
        tree = super().propose(view)
        return DraftTree(tree.tokens[:, : view.width], tree.parent[:, : view.width])


class MeasuredTree(ScriptedTree):
    """The same with a tree, whose accepted KV is moved."""

    def __init__(self) -> None:
        super().__init__({}, 512, drafts=2, script="wrong")
        self.plan = SpecPlan(width=5, tree=True, measures=(1, 5))

    def propose(self, view: DraftView) -> DraftTree:
        tree = super().propose(view)
        return DraftTree(tree.tokens[:, : view.width], tree.parent[:, : view.width])


def container(drafter: Scripted, *overrides: str) -> EngineContainer:
    made = EngineContainer()
    made.config.from_dict(dict(compose([*TINY, "step_costs=measure", *overrides]).cfg))
    made.speculator.override(Object(drafter))
    made.plan.override(Object(drafter.plan))
    return made


@pytest.mark.parametrize("overrides", [(), ("overlap.debug=true",), ("cache.page_size=1",)])
@pytest.mark.parametrize("drafter", [Measured, MeasuredTree])
def test_measuring_leaves_no_trace(cache: Path, drafter: Any, overrides: tuple[str, ...]) -> None:
    made = container(drafter(), "scheduler.max_running=3", *overrides)
    table, pool = made.table(), made.pool()
    tensors = [table.tokens, table.seq_lens, table.page_table, *table.relay.values()]
    tensors += [side for layer in pool.layers for side in (layer.k, layer.v)]
    tensors += [value for value in vars(table.columns).values() if isinstance(value, torch.Tensor)]
    before = [tensor.clone() for tensor in tensors]
    costs = made.costs()
    assert {batch for batch, _ in costs.seconds} <= {1, 2}
    assert all(cost > 0 for cost in costs.seconds.values())
    for tensor, old in zip(tensors, before, strict=True):
        assert torch.equal(tensor, old)


def test_the_steps_that_are_measured_are_real_ones(cache: Path) -> None:
    drafter = Measured()
    made = container(drafter, "scheduler.max_running=1")
    made.costs()
    assert set(drafter.seen) == {(1, 1, False), (1, 2, False), (1, 3, False)}
    assert len(drafter.accepted) == len(drafter.seen), "what the drafter learns is part of a step"


def test_an_algorithm_that_asks_for_no_costs_gets_none(cache: Path) -> None:
    with make(*TINY) as llm:
        assert llm.step_costs is None
    assert not cache.exists()


def test_outputs_do_not_change_by_measuring(cache: Path) -> None:
    prompts, params = [[5, 6, 7], [9, 8, 7, 6]], SamplingParams(max_tokens=12, ignore_eos=True)
    with make(*TINY) as llm:
        plain = [o.completions[0].token_ids for o in llm.generate(prompts, params)]
    with make(*TINY, "step_costs=measure", parts={"speculator": Measured()}) as llm:
        assert llm.step_costs is not None
        assert [o.completions[0].token_ids for o in llm.generate(prompts, params)] == plain
        llm.check()


SHORT = ("cache.max_context=96", "sampling.max_tokens=18", "scheduler.max_running=2", "model.layers=2")
NGRAM = ("spec=ngram", "spec.drafts=2")
EAGLE3 = ("spec=eagle3", "spec.load=dummy", "spec.adaptive=true", "spec.num_steps=2")
PROMPTS = [[5, 6, 5, 6, 5], [9, 8, 7, 6]]
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, bool]]:
    """Steps are run, and take what a quiet machine would: each draft a tenth of a plain step."""
    real, seen = ScratchSteps.seconds, list[tuple[int, int, bool]]()

    def seconds(self: ScratchSteps, batch: int, width: int, resume: bool) -> float:
        real(self, batch, width, resume)
        seen.append((batch, width, resume))
        return 0.01 * batch * (1 + 0.1 * (width - 1) + 0.05 * resume)

    monkeypatch.setattr(ScratchSteps, "seconds", seconds)
    return seen


def state(llm: LLM) -> list[torch.Tensor]:
    table, own = llm._container.table(), llm._container
    pools = [pool for pool in (own.pool(), own.draft_pool()) if pool is not None]
    kv = [side for pool in pools for layer in pool.layers for side in (layer.k, layer.v)]
    columns = [value for value in vars(table.columns).values() if isinstance(value, torch.Tensor)]
    return [table.tokens, table.seq_lens, table.page_table, *table.relay.values(), *columns, *kv]


@pytest.mark.parametrize("overlap", ["none", "future"])
@pytest.mark.parametrize("graph", ["none", "step"])
@pytest.mark.parametrize("spec", [NGRAM, EAGLE3], ids=["ngram", "eagle3"])
def test_a_check_keeps_a_right_table_and_leaves_no_trace(
    cache: Path,
    steady: list[tuple[int, int, bool]],
    spec: tuple[str, ...],
    graph: str,
    overlap: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = (*SHORT, *spec, f"graph={graph}", f"overlap={overlap}")
    with static_engine(*options) as llm:
        measured = llm.step_costs
    (place,) = (cache / "syncless" / "step_costs").iterdir()
    text, changed = place.read_bytes(), place.stat().st_mtime_ns
    steady.clear()
    with caplog.at_level(logging.WARNING, "syncless"), static_engine(*options) as checked:
        assert checked.step_costs == measured
        assert set(steady) == {(1, 1, False), (1, 3, False)}
        assert (place.read_bytes(), place.stat().st_mtime_ns) == (text, changed)
        steady.clear()
        with static_engine(*options, f"step_costs={place}") as pinned:
            assert not steady, "a pinned table is not checked"
            assert checked.metrics.snapshot() == pinned.metrics.snapshot()
            for one, other in zip(state(checked), state(pinned), strict=True):
                assert torch.equal(one, other)
            assert ids(checked, PROMPTS, PARAMS) == ids(pinned, PROMPTS, PARAMS)
            assert checked.metrics.widths == pinned.metrics.widths
    assert not [record for record in caplog.records if "step costs" in record.message]
    assert not steady, "nothing is measured while requests are served"


@pytest.mark.parametrize("spec", [NGRAM, EAGLE3], ids=["ngram", "eagle3"])
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_false_table_in_the_cache_misleads_no_engine(
    cache: Path,
    steady: list[tuple[int, int, bool]],
    spec: tuple[str, ...],
    factor: float,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with make(*TINY, *SHORT, *spec) as llm:
        right = llm.step_costs
    assert right is not None
    (place,) = (cache / "syncless" / "step_costs").iterdir()
    false = {key: cost * (factor if key[1] == 3 else 1.0) for key, cost in right.seconds.items()}
    place.write_text(json.dumps(as_document(StepCosts(false, right.resume))))
    with caplog.at_level(logging.WARNING, "syncless"), make(*TINY, *SHORT, *spec) as llm:
        assert llm.step_costs == right
    (message,) = (record.message for record in caplog.records if "step costs" in record.message)
    assert str(place) in message
    assert f"costs {1.2 * factor:.2f} plain steps there and 1.20 now" in message
    assert from_document(json.loads(place.read_text())) == right


def test_counters_do_not_see_a_measurement(cache: Path) -> None:
    with make(*TINY, *SHORT, *NGRAM, "step_costs=measure") as llm:
        before = llm.metrics.snapshot()
        gauge = Gauge(llm._container.scratch(), llm.metrics, (1, 3), False, lambda *news: None)
        llm.metrics.count("draft_too_long")
        gauge.measure()
        assert gauge.ratio(3).value > 0
        assert llm.metrics.snapshot() == {**before, "draft_too_long": 1}
        ids(llm, PROMPTS, PARAMS)
        assert llm.metrics.device_seconds < llm.metrics.serving_seconds + 1e-3
