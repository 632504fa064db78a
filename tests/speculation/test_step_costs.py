"""Step costs: measured by real steps that leave no trace, kept in the user's cache, recorded and replayed."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from dependency_injector.providers import Object
from support.drafters import Scripted, ScriptedTree
from support.engines import TINY, make

from engine.calibrate import ROUNDS, Measurement, Ratio, measure, ratio
from engine.compose import compose
from engine.container import EngineContainer
from engine.errors import UserError
from engine.loading import LineProgress
from engine.models.source import silent
from engine.params import SamplingParams
from engine.step_costs import STEADY, TOLERANCE, as_document, cached_file, costs_from, from_document
from speculative.base import DraftTree, DraftView, SpecPlan
from speculative.width import StepCosts

TABLE = StepCosts({(1, 1): 0.01, (1, 3): 0.02, (4, 1): 0.02, (4, 3): 0.05}, {1: 0.001, 4: 0.002})


class Clock:
    """Time that passes only where a step is run: a step of b requests and width w takes b * w."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps: list[tuple[int, int, bool]] = []

    def __call__(self) -> float:
        return self.now

    def step(self, batch: int, width: int, resume: bool) -> float:
        self.steps.append((batch, width, resume))
        self.now += batch * width + 10 * resume
        return batch * width + 10.0 * resume


@pytest.mark.parametrize("resumes", [False, True])
def test_every_width_at_as_many_batches_as_the_time_allows(resumes: bool) -> None:
    clock = Clock()
    found = measure(clock.step, (2, 4), 8, resumes=resumes, progress=silent, limit=1e9, clock=clock)
    costs = found.costs
    assert found.scatter == 0.0
    assert dict(costs.seconds) == {(b, w): b * w for b in (1, 2, 4, 8) for w in (1, 2, 4)}
    assert dict(costs.resume) == (dict.fromkeys((1, 2, 4, 8), 10.0) if resumes else {})
    assert len(clock.steps) == 4 * (ROUNDS + 1) * (3 + resumes)


@pytest.mark.parametrize("limit", [0.0, 50.0, 100.0, 400.0])
def test_the_time_limit_holds_once_the_smallest_batch_is_known(limit: float) -> None:
    clock = Clock()
    costs = measure(clock.step, (2, 4), 64, resumes=False, progress=silent, limit=limit, clock=clock).costs
    assert {(1, 1), (1, 2), (1, 4)} <= set(costs.seconds)
    assert clock.now <= max(limit * 1.5, 7 * 2)
    assert all(dict(costs.seconds)[key] == key[0] * key[1] for key in costs.seconds)
    assert len(costs.seconds) == 3 or limit > 0


class Disturbed(Clock):
    """Another program takes the machine for `lost` seconds after every `between` seconds of ours."""

    def __init__(self, between: float, lost: float) -> None:
        super().__init__()
        self._between, self._lost, self._ours = between, lost, 0.0

    def step(self, batch: int, width: int, resume: bool) -> float:
        own = super().step(batch, width, resume)
        before, self._ours = self._ours, self._ours + own
        lost = self._lost * (self._ours // self._between - before // self._between)
        self.now += lost
        return own + lost


@pytest.mark.parametrize("between", [5.0, 5.5, 7.0, 9.0, 10.0])
def test_a_program_that_comes_back_in_step_with_the_rounds_does_not_show(between: float) -> None:
    """A round of widths 1 and 4 takes five seconds: with a fixed order, one kind would always be met."""
    clock = Disturbed(between, 20.0)
    seen = ratio(clock.step, 4, progress=silent, limit=1e9, clock=clock)
    assert seen.value == 4.0
    assert {(batch, width) for batch, width, _ in clock.steps} == {(1, 1), (1, 4)}


def test_a_figure_that_no_repeat_confirms_shows_as_scatter() -> None:
    noise = iter(range(10**6))
    found = measure(
        lambda b, w, r: 1.5 ** (next(noise) % 7), (2,), 1, resumes=False, progress=silent, limit=1e9
    )
    assert found.scatter >= 0.5
    steady = measure(lambda b, w, r: 1.0 * w, (2,), 1, resumes=False, progress=silent, limit=1e9)
    assert steady == Measurement(StepCosts({(1, 1): 1.0, (1, 2): 2.0}), 0.0)


def test_a_check_of_slow_steps_repeats_them_once() -> None:
    clock = Clock()
    assert ratio(clock.step, 8, progress=silent, clock=clock) == Ratio(8.0, 0.0)
    assert clock.steps == [(1, 1, False), (1, 8, False)] * 2


def test_progress_is_told_before_each_step_and_at_the_end() -> None:
    told: list[tuple[str, int, int]] = []
    ratio(lambda b, w, r: 1.0, 8, progress=lambda *news: told.append(news))
    assert told == [("checking step costs", done, 2 * (ROUNDS + 1)) for done in range(2 * (ROUNDS + 1) + 1)]
    told.clear()
    measure(lambda b, w, r: 1.0, (2,), 1, resumes=False, progress=lambda *news: told.append(news))
    assert told[0] == ("measuring step costs", 0, 2 * (ROUNDS + 1))
    assert [done for _, done, _ in told] == list(range(2 * (ROUNDS + 1) + 1))


def test_waiting_people_hear_of_what_takes_longer_than_a_second() -> None:
    now, said = [0.0], list[str]()
    line = LineProgress(said.append, clock=lambda: now[0])
    now[0] = 30.0  # weights were read
    for seconds in (0.05, 0.6):
        for done in range(6):
            line("measuring step costs", done, 5)
            now[0] += seconds
    assert said == ["measuring step costs: 40%", "measuring step costs: 80%"]


def test_a_table_reads_back_as_it_was() -> None:
    assert from_document(json.loads(json.dumps(as_document(TABLE)))) == TABLE


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        {"seconds": [[1, 1]], "resume": []},
        {"seconds": [[1, 1, 0.1], [1, 2, 0.2], [2, 1, 0.1]], "resume": []},
        {"seconds": [[1, 2, 0.1]], "resume": []},
        {"seconds": [[1, 1, -0.1]], "resume": []},
        {"seconds": [[1, 1, float("nan")]], "resume": []},
        {"seconds": [[1, 1, 0.1]], "resume": [[1, float("inf")]]},
        {"seconds": [[float("inf"), 1, 0.1]], "resume": []},
        {"seconds": [[0, 1, 0.1]], "resume": []},
        {"seconds": [[1, 1, 0.1], [1, 0, 0.1]], "resume": []},
        {"seconds": [[1, 1, 0.1]], "resume": [[0, 0.1]]},
    ],
)
def test_what_is_no_table_is_refused(document: Any) -> None:
    with pytest.raises(ValueError, match="it "):
        from_document(document)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Stub:
    """A machine on which a step of width 3 costs `now` plain steps, and measurements scatter as told."""

    def __init__(self, now: Sequence[float] = (2.0,), scatter: Sequence[float] = (0.0,), doubt: float = 0.0):
        """The last value of each goes on for ever. doubt: scatter of checks."""
        self._now, self._scatter, self._doubt = list(now), list(scatter), doubt
        self.measured: list[StepCosts] = []
        self.checked: list[int] = []

    def measure(self) -> Measurement:
        scale = 1.0 + len(self.measured)  # to tell tables apart
        costs = StepCosts({key: scale * cost for key, cost in TABLE.seconds.items()}, TABLE.resume)
        self.measured.append(costs)
        return Measurement(costs, self._scatter.pop(0) if self._scatter[1:] else self._scatter[0])

    def ratio(self, width: int) -> Ratio:
        self.checked.append(width)
        return Ratio(self._now.pop(0) if self._now[1:] else self._now[0], self._doubt)


def kept(key: dict[str, Any], widest: float = 0.02) -> Path:
    """A cached table in which a step of width 3 takes `widest` seconds, and a plain one 0.01."""
    place = cached_file(key)
    place.parent.mkdir(parents=True, exist_ok=True)
    seconds = {**TABLE.seconds, (1, 3): widest}
    place.write_text(json.dumps(as_document(StepCosts(seconds, TABLE.resume), key)) + "\n\n")
    return place


def test_measured_once_then_cached_by_circumstances(cache: Path) -> None:
    stub = Stub()
    for key in ({"threads": 1}, {"threads": 1}, {"threads": 2}):
        costs_from("cached", key, (1, 3), stub)
    assert len(stub.measured) == 2
    assert stub.checked == [3]
    assert costs_from("measure", {"threads": 1}, (1, 3), stub) == stub.measured[2]
    assert len(stub.measured) == 3
    assert stub.checked == [3]
    assert cached_file({"threads": 1}).is_relative_to(cache)
    assert not list(cache.rglob("*.partial"))


@pytest.mark.parametrize(
    "damage", ["", "{", '{"seconds": [[1, 1, 0.1]], "resume": []}', "\x00\x01", "[" * 100_000]
)
def test_a_damaged_or_lacking_cache_is_measured_again_with_a_warning(
    cache: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = cached_file({})
    place.parent.mkdir(parents=True)
    place.write_text(damage)
    with caplog.at_level(logging.WARNING, "syncless"):
        assert costs_from("cached", {}, (1, 3), Stub()) == TABLE
    assert "measured again" in caplog.text
    assert from_document(json.loads(place.read_text())) == TABLE


def test_a_cache_that_cannot_be_written_costs_a_warning_only(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.write_text("a file where a folder is needed")
    with caplog.at_level(logging.WARNING, "syncless"):
        assert costs_from("cached", {}, (1, 3), Stub()) == TABLE
    assert "cannot be kept" in caplog.text


def test_a_given_file_has_to_be_there_and_to_hold_the_widths(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(as_document(TABLE)))
    stub = Stub(now=(9.0,))
    assert costs_from(str(file), {}, (1, 3), stub) == TABLE
    with pytest.raises(UserError, match=r"step_costs=.*width 4, 5.*step_costs=cached"):
        costs_from(str(file), {}, (1, 3, 4, 5), stub)
    with pytest.raises(UserError, match="No such file"):
        costs_from(str(tmp_path / "absent.json"), {}, (1,), stub)
    assert not stub.measured
    assert not stub.checked, "a pinned table repeats a run: it is used as it is"


@pytest.mark.parametrize("widest", [0.01, 0.04, 0.02 * (1 + TOLERANCE) * 1.01, 0.02 / (1 + TOLERANCE) / 1.01])
def test_a_false_table_is_noticed_and_replaced(
    cache: Path, widest: float, caplog: pytest.LogCaptureFixture
) -> None:
    place, stub = kept({}, widest), Stub()
    with caplog.at_level(logging.WARNING, "syncless"):
        assert costs_from("cached", {}, (1, 3), stub) == stub.measured[0]
    (record,) = caplog.records
    assert str(place) in record.message
    assert f"width 3 costs {widest / 0.01:.2f} plain steps there and 2.00 now" in record.message
    assert from_document(json.loads(place.read_text())) == stub.measured[0]
    caplog.clear()
    assert costs_from("cached", {}, (1, 3), stub) == stub.measured[0]
    assert not caplog.records
    assert len(stub.measured) == 1


@pytest.mark.parametrize(
    ("now", "doubt", "looks"),
    [
        ((2.0,), 0.0, 1),
        ((2.0 * (1 + TOLERANCE) * 0.99,), 0.0, 1),
        ((2.0 / (1 + TOLERANCE) * 1.01,), 0.0, 1),
        ((4.0, 2.0), 0.0, 2),
        ((4.0,), 1.0, 1),
    ],
    ids=["right", "a little dearer", "a little cheaper", "one disturbed look", "checks that scatter"],
)
def test_a_right_table_is_kept_bit_for_bit(
    cache: Path, now: tuple[float, ...], doubt: float, looks: int, caplog: pytest.LogCaptureFixture
) -> None:
    place, stub = kept({}), Stub(now, doubt=doubt)
    before = place.read_bytes(), place.stat().st_mtime_ns, place.stat().st_ino
    with caplog.at_level(logging.WARNING, "syncless"):
        assert costs_from("cached", {}, (1, 3), stub) == TABLE
    assert (place.read_bytes(), place.stat().st_mtime_ns, place.stat().st_ino) == before
    assert stub.checked == [3] * looks
    assert not stub.measured
    assert not caplog.records


@pytest.mark.parametrize("older", [None, 0.08])
@pytest.mark.parametrize("choice", ["cached", "measure"])
def test_a_measurement_that_scatters_twice_serves_the_run_and_is_not_kept(
    cache: Path, choice: str, older: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    stub = Stub(scatter=(2 * STEADY, 3 * STEADY))
    text = None if older is None else kept({}, older).read_text()
    with caplog.at_level(logging.WARNING, "syncless"):
        assert costs_from(choice, {}, (1, 3), stub) == stub.measured[0], "the steadier one"
    assert len(stub.measured) == 2
    assert "not kept: repeats of a step differ by 50%, more than 25%" in caplog.records[-1].message
    place = cached_file({})
    assert (place.read_text() if place.exists() else None) == text


def test_a_second_measurement_that_is_steady_is_kept(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    stub = Stub(scatter=(2 * STEADY, STEADY))
    with caplog.at_level(logging.WARNING, "syncless"):
        assert costs_from("cached", {}, (1, 3), stub) == stub.measured[1]
    assert from_document(json.loads(cached_file({}).read_text())) == stub.measured[1]
    assert not caplog.records


def test_a_cache_file_that_cannot_be_read_loses_nothing(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = cached_file({})
    (place / "inside").mkdir(parents=True)
    stub = Stub()
    with caplog.at_level(logging.WARNING, "syncless"):
        assert costs_from("cached", {}, (1, 3), stub) == stub.measured[0]
    read, write = (record.message for record in caplog.records)
    assert "cannot be used (Is a directory); they are measured again" in read
    assert "cannot be kept" in write
    assert (place / "inside").is_dir()


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
