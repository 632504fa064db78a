"""Who waits for a time of arrival, who for a place, and which requests go before which."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from paced_jobs import job
from task_fakes import FakeEngine, context_of, spell

from engine.runs import OUTPUTS, RESULT, read_lines
from engine.tasks.base import run_task
from engine.tasks.bench import Bench
from engine.tasks.drive import Answer, Job, Watch, run_jobs
from engine.tasks.generate import Generate
from engine.tasks.interrupts import StopFlag
from engine.tasks.pace import POLL_SECONDS, Pace


class Time:
    """A clock that moves when somebody sleeps, and by a second a step of the engine."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def pace(self) -> Pace:
        return Pace(lambda: self.now, self.sleep)


def drive(
    jobs: list[Job],
    *,
    concurrency: int | None = None,
    on_step: Callable[[int, StopFlag], None] = lambda step, stop: None,
) -> tuple[list[Answer], Time, list[tuple[int, float]], StopFlag]:
    """Answers, the clock, and when each prompt (known by its first id) reached the engine."""
    time, engine, got = Time(), FakeEngine(), []
    add, start = engine.add, 100.0

    def watched(ids: Any, params: Any = None, *, listener: bool = False) -> str:
        got.append((ids[0], time.now - start))
        return add(ids, params, listener=listener)

    engine.add = watched  # type: ignore[method-assign]
    with StopFlag(io.StringIO()) as stop:

        def stepped(step: int) -> None:
            time.now += 1.0
            on_step(step, stop)

        engine.on_step = stepped
        answers = run_jobs(engine, jobs, stop, concurrency=concurrency, pace=time.pace())
    return answers, time, got, stop


def test_requests_wait_for_their_time_and_no_longer_than_a_step() -> None:
    """A step takes a second: what comes within one is handed over after it, and counted late."""
    answers, _, got, _ = drive([job(0, 0.0), job(1, 0.4), job(2, 2.0)])
    assert got == [(0, 0.0), (1, 1.0), (2, 2.0)]
    assert [a.late for a in answers] == pytest.approx([0.0, 0.6, 0.0])


def test_an_idle_engine_sleeps_in_short_pieces_until_the_next_request() -> None:
    _, time, got, _ = drive([job(0, 10.0, tokens=1)])
    assert got == [(0, pytest.approx(10.0))]
    assert max(time.slept) <= POLL_SECONDS
    assert sum(time.slept) == pytest.approx(10.0)


def test_order_is_that_of_the_times_and_answers_keep_the_jobs_order() -> None:
    answers, _, got, _ = drive([job(0, 9.0), job(1, 0.0), job(2, 4.0)])
    assert [key for key, _ in got] == [1, 2, 0]
    assert [a.job.key for a in answers] == [0, 1, 2]


def test_a_bound_on_requests_in_flight_makes_them_late() -> None:
    answers, _, got, _ = drive([job(0, 0.0, 4), job(1, 1.0, 4)], concurrency=1)
    assert got == [(0, 0.0), (1, 4.0)]
    assert answers[1].late == pytest.approx(3.0)


def test_without_times_nothing_is_late() -> None:
    answers, time, got, _ = drive([job(0, 0.0, 4), job(1, 0.0, 4)], concurrency=1)
    assert got == [(0, 0.0), (1, 4.0)]
    assert [a.late for a in answers] == [0.0, 0.0]
    assert time.slept == []


def test_a_stop_while_waiting_ends_at_once() -> None:
    def stop_at_two(step: int, stop: StopFlag) -> None:
        if step == 2:
            stop.request()

    answers, time, got, _ = drive([job(0, 0.0, 9), job(1, 500.0)], on_step=stop_at_two)
    assert [key for key, _ in got] == [0]
    assert time.slept == []
    assert time.now - 100.0 <= 3.0
    assert [a.cut for a in answers] == [True]


def test_what_follows_goes_before_what_waits() -> None:
    engine, order = FakeEngine(), []
    add = engine.add

    def watched(ids: Any, params: Any = None, *, listener: bool = False) -> str:
        order.append(ids[0])
        return add(ids, params, listener=listener)

    engine.add = watched  # type: ignore[method-assign]

    def follow(answer: Answer) -> Job | None:
        done = answer.job
        return Job(done.key, (done.key + 10,), done.params, turn=1) if done.turn == 0 else None

    with StopFlag(io.StringIO()) as stop:
        answers = run_jobs(engine, [job(k, 0.0) for k in range(3)], stop, Watch(follow=follow), concurrency=1)
    assert order == [0, 10, 1, 11, 2, 12]
    assert [(a.job.key, a.job.turn) for a in answers] == [(k, t) for k in range(3) for t in (0, 1)]


@pytest.mark.parametrize("task", [Generate(Generate.Config()), Bench(Bench.Config(warmup=1, repeats=2))])
def test_conversations_are_asked_to_their_end(tmp_path: Path, task: Any) -> None:
    prompts = []

    def script(ids: Any) -> int:
        prompts.append(bytes(i for i in ids if i < 256).decode())
        return spell("ok")(ids)

    file = tmp_path / "w.jsonl"
    file.write_text(
        json.dumps({"turns": ["first", "second", "third"], "system": "brief"})
        + "\n"
        + json.dumps({"prompt": "alone"})
    )
    context = context_of(tmp_path, FakeEngine(script), "workload=file", f"workload.path={file}")
    assert run_task(task, context, "text") == 0
    rows = read_lines(context.folder().path / OUTPUTS)
    assert sorted((r["index"], r["turn"]) for r in rows) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    said = "system: brief\nuser: first\nassistant: ok\nuser: second\nassistant: ok\nuser: third\nassistant: "
    assert said in prompts
    result = json.loads((context.folder().path / RESULT).read_text())
    assert result["requests"] == 4
