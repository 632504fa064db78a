"""task=bench: figures against arithmetic done by hand, the promised keys, and what a reader is warned of."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from task_fakes import FakeEngine, context_of, spell, text_of

from engine.batch import Mode
from engine.errors import UserError
from engine.metrics import EngineMetrics, difference, rates
from engine.runs import OUTPUTS, RESULT, read_lines
from engine.tasks.base import EXIT_OK, run_task
from engine.tasks.bench import Bench
from engine.tasks.bench_report import Measured, warnings_of
from engine.tasks.report import percentile, percentiles, token_gaps
from engine.workloads.base import Workload
from engine.workloads.builtin import BuiltinPrompts
from engine.workloads.random import RandomTokens

KEYS = {
    "output_tokens_per_s",
    "total_tokens_per_s",
    "requests_per_s",
    "ttft_ms",
    "itl_ms",
    "decode_step_ms",
    "peak_memory_bytes",
    "host_waits_per_step",
    "accept_length",
    "decode_batch",
}


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=30), st.floats(0, 1))
def test_percentile_is_numpys(values: list[float], quantile: float) -> None:
    assert percentile(values, quantile) == pytest.approx(float(np.quantile(values, quantile)), abs=1e-6)


def test_percentiles_of_nothing_are_null() -> None:
    assert percentiles([]) == {"p50": None, "p90": None, "p99": None}


@pytest.mark.parametrize(
    ("times", "gaps"),
    [
        ([], []),
        ([1.0], []),
        ([1.0, 3.0, 4.0], [2.0, 1.0]),
        ([1.0, 4.0, 4.0, 4.0, 6.0, 6.0], [1.0, 1.0, 1.0, 1.0, 1.0]),
        ([2.0, 2.0, 3.0], [1.0]),
    ],
)
def test_inter_token_latency_is_per_token(times: list[float], gaps: list[float]) -> None:
    """Three tokens in one step of 3 s are 1 s each, not 0, 0 and 3."""
    assert token_gaps(times) == gaps


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_gaps_add_up_to_the_time_after_the_first_step(steps: list[int]) -> None:
    times = list(np.cumsum(steps).astype(float))
    assert sum(token_gaps(times)) == pytest.approx(times[-1] - times[0])


def bench(tmp_path: Path, engine: FakeEngine, *overrides: str, **options: object):  # type: ignore[no-untyped-def]
    context = context_of(tmp_path, engine, "sampling.max_tokens=8", *overrides)
    code = run_task(Bench(Bench.Config(**options)), context, "text")  # type: ignore[arg-type]
    return code, json.loads((context.folder().path / RESULT).read_text()), context


def test_promised_keys_and_counts(tmp_path: Path) -> None:
    engine = FakeEngine()
    code, result, context = bench(tmp_path, engine, "workload.limit=4", warmup=1, repeats=3)
    assert code == EXIT_OK
    assert set(result) >= KEYS
    for key in ("ttft_ms", "itl_ms"):
        assert set(result[key]) == {"p50", "p90", "p99"}
    assert (result["output_tokens"], result["requests"], result["repeats"]) == (32, 4, 3)
    assert len(result["runs"]) == 3
    assert result["output_tokens_per_s"] == pytest.approx(
        sorted(32 / run["seconds"] for run in result["runs"])[1]
    )
    assert result["peak_memory_bytes"] > 10**6
    assert len(read_lines(context.folder().path / OUTPUTS)) == 4
    assert "output tokens/s" in text_of(context.stdout)


def test_every_run_says_how_busy_host_and_device_were(tmp_path: Path) -> None:
    """Field report Y4: waits stand next to tokens/s, in the table and in each repeat's row."""
    engine = FakeEngine()

    def worked() -> None:
        engine.metrics.device_seconds += 0.75
        engine.metrics.serving_seconds += 1.0
        engine.metrics.back_pressure_waits += 2

    step = engine.step
    engine.step = lambda: (worked(), step())[1]  # type: ignore[method-assign]
    _, result, context = bench(tmp_path, engine, "workload.limit=2", warmup=1, repeats=2)
    for row in (result, *result["runs"]):
        assert row["forward_occupancy"] == pytest.approx(0.75)
        assert row["back_pressure_waits_per_step"] == pytest.approx(2.0)
        assert row["host_waits_per_step"] == 0
    shown = text_of(context.stdout)
    assert "device at work          75.0%" in shown
    assert "back-pressure waits a step 2.0000" in shown


def test_warm_up_does_not_leak_into_the_figures(tmp_path: Path) -> None:
    """Field report M4: counters are differences."""
    _, result, _ = bench(tmp_path, FakeEngine(), "workload.limit=2", warmup=2, repeats=1)
    assert result["metrics"]["emitted_tokens"] == 16
    assert result["metrics"]["decode_steps"] == 8


@pytest.mark.parametrize("concurrency", [1, 2, 4, None])
def test_concurrency_bounds_the_requests_in_flight(tmp_path: Path, concurrency: int | None) -> None:
    _, result, _ = bench(tmp_path, FakeEngine(), "workload.limit=4", concurrency=concurrency, repeats=1)
    assert result["decode_batch"] == (concurrency or 4)
    assert result["metrics"]["decode_steps"] == 8 * 4 // (concurrency or 4)


@pytest.mark.parametrize("ignore", [False, True])
def test_end_of_sequence_is_honoured_by_default(tmp_path: Path, ignore: bool) -> None:
    _, result, _ = bench(tmp_path, FakeEngine(spell("abc")), "workload.limit=2", ignore_eos=ignore, repeats=1)
    assert result["output_tokens"] == (16 if ignore else 8)


def test_accept_length_counts_emitted_tokens(tmp_path: Path) -> None:
    """Field report E6: a width of 3 over 8 tokens is 3, 3, 2 tokens in three steps."""
    _, result, _ = bench(tmp_path, FakeEngine(width=3), "workload.limit=2", repeats=1)
    assert result["accept_length"] == pytest.approx(8 / 3)


def counted(**counters: int) -> Measured:
    metrics = EngineMetrics()
    for name, value in counters.items():
        setattr(metrics, name, value)
    return Measured([], 1.0, metrics.snapshot())


@pytest.mark.parametrize(
    ("workload", "counters", "ignore_eos", "words"),
    [
        (BuiltinPrompts(Workload.Config()), {"drafted_tokens": 5}, False, []),
        (RandomTokens(RandomTokens.Config()), {"drafted_tokens": 0}, True, []),
        (RandomTokens(RandomTokens.Config()), {"drafted_tokens": 5}, False, ["not representative"]),
        (BuiltinPrompts(Workload.Config()), {"drafted_tokens": 5}, True, ["not representative"]),
        (BuiltinPrompts(Workload.Config()), {"decode_steps": 100, "eager_decode_steps": 6}, False, ["6%"]),
        (BuiltinPrompts(Workload.Config()), {"decode_steps": 100, "eager_decode_steps": 5}, False, []),
    ],
)
def test_warnings(workload: Workload, counters: dict[str, int], ignore_eos: bool, words: list[str]) -> None:
    """Field reports M2 and M6."""
    found = warnings_of(workload, [counted(**counters)], ignore_eos)
    assert len(found) == len(words)
    assert all(word in line for word, line in zip(words, found, strict=True))


def test_random_tokens_with_a_drafter_are_marked_in_table_and_result(tmp_path: Path) -> None:
    _, result, context = bench(
        tmp_path, FakeEngine(width=2), "workload=random", "workload.count=2", repeats=1
    )
    assert result["representative"] is False
    assert "NOT REPRESENTATIVE" in text_of(context.stdout)
    assert "  ! not representative: " in text_of(context.stdout)


def test_an_endless_benchmark_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="max_tokens"):
        bench(tmp_path, FakeEngine(), "sampling.max_tokens=null", ignore_eos=True)


def test_metrics_count_modes_waits_and_results() -> None:
    metrics = EngineMetrics()
    metrics.launched(Mode.EXTEND, 3)
    metrics.launched(Mode.VERIFY, 2, 4)
    metrics.launched(Mode.VERIFY, 4, 1)
    metrics.waited(0.5, later_queued=False)
    metrics.waited(0.25, later_queued=True)
    metrics.applied(Mode.EXTEND, 3, 3)
    metrics.applied(Mode.VERIFY, 2, 5, accepted=3, drafted=18)
    found = metrics.snapshot()
    assert (found["extend_steps"], found["decode_steps"], found["decode_rows"]) == (1, 2, 6)
    assert (found["host_waits"], found["back_pressure_waits"]) == (1, 1)
    assert (found["emitted_tokens"], found["decode_tokens"], found["drafted_tokens"]) == (8, 5, 18)
    assert metrics.spec_counts().widths == {4: 1, 1: 1}
    derived = rates(found)
    assert derived["decode_batch"] == 3
    assert derived["accept_length"] == 2.5
    assert derived["host_waits_per_step"] == pytest.approx(1 / 3)
    assert derived["accept_rate"] == pytest.approx(1 / 6)


def test_rates_of_nothing_are_null_and_differences_drop_the_past() -> None:
    metrics = EngineMetrics()
    assert set(rates(metrics.snapshot()).values()) == {None}
    metrics.launched(Mode.VERIFY, 4, 1)
    before = metrics.snapshot()
    metrics.launched(Mode.VERIFY, 2, 1)
    grown = difference(before, metrics.snapshot())
    assert (grown["decode_steps"], grown["decode_rows"], grown["peak_running"]) == (1, 2, 4)


def test_noisy_repeats_are_named_and_quiet_ones_are_not() -> None:
    def measured(seconds: float) -> Measured:
        return Measured([FakeAnswer()], seconds, EngineMetrics().snapshot())

    def warned(*seconds: float) -> list[str]:
        return warnings_of(BuiltinPrompts(BuiltinPrompts.Config()), [measured(s) for s in seconds], False)

    assert warned(1.0, 1.05, 1.1) == []
    assert warned(1.0) == []
    assert [line.split(":")[0] for line in warned(1.0, 1.2, 1.5)] == ["noisy"]


@pytest.mark.parametrize(("form", "told"), [("text", "stdout"), ("json", "stderr")])
def test_a_warning_is_said_once(tmp_path: Path, form: str, told: str) -> None:
    """The table has it; where stdout belongs to the JSON object, stderr does."""
    lines = ("sampling.max_tokens=8", "workload=random", "workload.count=2")
    context = context_of(tmp_path, FakeEngine(width=2), *lines)
    task = Bench(Bench.Config(format=form, warmup=0, repeats=1))
    run_task(task, context, form)
    counts = {
        name: text_of(stream).count("not representative: ")
        for name, stream in (("stdout", context.stdout), ("stderr", context.stderr))
    }
    expected = {"stdout": 1 if form == "json" else 0, "stderr": 0} | {told: 1}
    assert counts == expected


class FakeAnswer:
    """Only what the warnings ask for."""

    tokens = 100
    cut = False
