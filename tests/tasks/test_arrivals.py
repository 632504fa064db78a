"""Arrivals: their times, who waits for them, what latencies count, and conversations that follow answers."""

from __future__ import annotations

import io
import itertools
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from task_fakes import FakeEngine, context_of, spell, text_of

from engine.errors import UserError
from engine.metrics import EngineMetrics
from engine.params import SamplingParams
from engine.request import Completion, RequestOutput
from engine.runs import OUTPUTS, RESULT, WORKLOAD, read_lines
from engine.tasks.base import run_task
from engine.tasks.bench import Bench
from engine.tasks.bench_report import Goal, Measured, figures
from engine.tasks.drive import Answer, Job, Watch, run_jobs
from engine.tasks.generate import Generate
from engine.tasks.interrupts import StopFlag
from engine.tasks.pace import POLL_SECONDS, Pace
from engine.tasks.requests import load_workload, make_jobs
from engine.workloads.arrivals import AsGiven, Bursts, RandomArrivals
from engine.workloads.base import WorkItem
from engine.workloads.rows import parse_row

ITEMS = [WorkItem(prompt=str(n)) for n in range(2000)]


def gaps(rate: float, shape: float, seed: int = 0) -> list[float]:
    times = RandomArrivals(RandomArrivals.Config(rate, shape, seed)).times(ITEMS)
    assert times[0] == 0.0
    return [b - a for a, b in itertools.pairwise(times)]


@pytest.mark.parametrize(("rate", "shape"), [(2.0, 1.0), (0.5, 0.25), (100.0, 4.0)])
def test_random_gaps_follow_their_distribution(rate: float, shape: float) -> None:
    """Kolmogorov-Smirnov against scipy's gamma; a Poisson process has exponential gaps."""
    law = stats.gamma(shape, scale=1 / (rate * shape))
    assert stats.kstest(gaps(rate, shape), law.cdf).pvalue > 0.01
    other = stats.gamma(shape, scale=2 / (rate * shape))
    assert stats.kstest(gaps(rate, shape), other.cdf).pvalue < 1e-6, "the test has power"
    if shape == 1.0:
        assert stats.kstest(gaps(rate, shape), stats.expon(scale=1 / rate).cdf).pvalue > 0.01
    assert statistics.mean(gaps(rate, shape)) == pytest.approx(1 / rate, rel=0.15)


def test_times_depend_on_the_seed_alone() -> None:
    assert gaps(1.0, 1.0, 3) == gaps(1.0, 1.0, 3) != gaps(1.0, 1.0, 4)


def test_bursts_and_given_times() -> None:
    assert Bursts(Bursts.Config(size=2, seconds=1.5)).times(ITEMS[:5]) == [0.0, 0.0, 1.5, 1.5, 3.0]
    given = [WorkItem(prompt="a", at=2.5), WorkItem(prompt="b")]
    assert AsGiven(AsGiven.Config()).times(given) == [2.5, 0.0]


@pytest.mark.parametrize(
    "item",
    [
        WorkItem(prompt="a", at=1.25, max_tokens=7),
        WorkItem(ids=(1, 2), at=0.5),
        WorkItem(turns=("a", "b"), system="s", at=3.0),
    ],
)
def test_times_survive_the_run_folder(item: WorkItem) -> None:
    assert parse_row(json.loads(json.dumps(item.as_row())), "x") == item


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "a", "at": -1}, "at has to be a number of seconds"),
        ({"prompt": "a", "at": "soon"}, "at has to be a number of seconds"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens has to be a whole number"),
        ({"prompt": "a", "system": 3}, "system has to be text"),
        ({"ids": [1], "system": "s"}, "system goes with prompt or turns"),
    ],
)
def test_wrong_extras_are_named(row: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=f"here: {words}"):
        parse_row(row, "here")


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


def job(key: int, at: float, tokens: int = 3) -> Job:
    return Job(key, (key,), SamplingParams(max_tokens=tokens), at)


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

    answers, _, got, _ = drive([job(0, 0.0, 9), job(1, 500.0)], on_step=stop_at_two)
    assert [key for key, _ in got] == [0]
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


# --- through the tasks ---


def test_times_and_lengths_reach_jobs_and_the_run_folder(tmp_path: Path) -> None:
    engine = FakeEngine()
    overrides = ("workload.limit=4", "arrivals=poisson", "arrivals.rate=200", "sampling.max_tokens=5")
    context = context_of(tmp_path, engine, *overrides)
    found = load_workload(context).items(320)
    jobs = make_jobs(engine, found, SamplingParams(max_tokens=5))
    assert [j.at for j in jobs] == [i.at for i in found]
    assert jobs[0].at == 0.0 < jobs[1].at < jobs[2].at < jobs[3].at
    assert run_task(Generate(Generate.Config()), context, "text") == 0
    rows = read_lines(context.folder().path / WORKLOAD)
    assert [row.get("at", 0.0) for row in rows] == [j.at for j in jobs]
    assert len(read_lines(context.folder().path / OUTPUTS)) == 4


def test_an_item_may_bring_its_own_limit(tmp_path: Path) -> None:
    context = context_of(
        tmp_path,
        FakeEngine(),
        "workload=random",
        "workload.count=6",
        "workload.input_len=5",
        "workload.output_len=[2,4]",
        "sampling.max_tokens=50",
    )
    run_task(Generate(Generate.Config()), context, "text")
    rows = read_lines(context.folder().path / OUTPUTS)
    assert all(len(row["completions"][0]["token_ids"]) == row["max_tokens"] for row in rows)
    assert len({row["max_tokens"] for row in rows}) > 1
    result = json.loads((context.folder().path / RESULT).read_text())
    assert result["representative"] is False


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


def measured(*times: tuple[float, ...], late: float = 0.0, seconds: float = 10.0) -> Measured:
    answers = [
        Answer(
            job(k, 0.0),
            0.0,
            RequestOutput(
                f"r{k}",
                None,
                (1,),
                (Completion(0, "", tuple(range(len(own))), "stop", None, own),),
                0,
            ),
            late,
        )
        for k, own in enumerate(times)
    ]
    return Measured(answers, seconds, EngineMetrics().snapshot())


def test_latencies_count_from_the_arrival() -> None:
    """Two requests, handed over half a second late: first tokens after 1 and 2 s, five and three in all."""
    found = figures(measured((1.0, 2.0, 2.0, 3.0, 5.0), (2.0, 2.5, 3.0), late=0.5))
    assert found["ttft_ms"]["p50"] == pytest.approx(2000.0)
    assert found["e2e_ms"]["p50"] == pytest.approx((5500 + 3500) / 2)
    assert found["tpot_ms"]["p50"] == pytest.approx((1000 + 500) / 2)
    assert found["late_ms"]["p99"] == pytest.approx(500.0)
    assert found["goodput_per_s"] is None


def test_one_token_has_no_time_per_token() -> None:
    assert figures(measured((1.0,)))["tpot_ms"] == {"p50": None, "p90": None, "p99": None}


@pytest.mark.parametrize(
    ("goal", "good"),
    [
        (Goal(1500.0), 1),
        (Goal(2500.0), 2),
        (Goal(None, 500.0), 1),
        (Goal(1400.0), 0),
        (Goal(2500.0, 999.0), 1),
    ],
)
def test_goodput_counts_requests_within_both_limits(goal: Goal, good: int) -> None:
    run = measured((1.0, 2.0, 2.0, 3.0, 5.0), (2.0, 2.5, 3.0), late=0.5)
    assert figures(run, goal)["goodput_per_s"] == pytest.approx(good / 10.0)


def test_bench_shows_latency_under_arrivals(tmp_path: Path) -> None:
    context = context_of(
        tmp_path,
        FakeEngine(),
        "workload.limit=3",
        "sampling.max_tokens=4",
        "arrivals=burst",
        "arrivals.size=1",
        "arrivals.seconds=0.02",
    )
    code = run_task(Bench(Bench.Config(warmup=0, repeats=1, ttft_limit_ms=1e9)), context, "text")
    result = json.loads((context.folder().path / RESULT).read_text())
    assert code == 0
    assert result["seconds"] >= 0.04
    for key in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "late_ms"):
        assert set(result[key]) == {"p50", "p90", "p99"}
    assert result["goodput_per_s"] == pytest.approx(result["requests_per_s"])
    assert "requests/s in time" in text_of(context.stdout)
