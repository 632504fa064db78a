"""Times of arrival and limits of single items: what they are, and how they reach jobs and the run folder."""

from __future__ import annotations

import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from task_fakes import FakeEngine, context_of

from engine.errors import UserError
from engine.params import SamplingParams
from engine.runs import OUTPUTS, RESULT, WORKLOAD, read_lines
from engine.tasks.base import run_task
from engine.tasks.generate import Generate
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


def test_times_reach_jobs_and_the_run_folder(tmp_path: Path) -> None:
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
