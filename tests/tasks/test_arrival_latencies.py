"""Latencies under arrivals: what counts from when, and how many requests were good enough."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from paced_jobs import job
from task_fakes import FakeEngine, context_of, text_of

from engine.answers import Completion, RequestOutput
from engine.metrics import EngineMetrics
from engine.runs import RESULT
from engine.tasks.base import run_task
from engine.tasks.bench import Bench
from engine.tasks.bench_report import Goal, Measured, figures
from engine.tasks.drive import Answer


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
