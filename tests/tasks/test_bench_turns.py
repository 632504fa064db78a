"""task=bench with drafts: both sides take turns, and a machine that drifts does not decide."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from task_fakes import FakeEngine, context_of, text_of

from engine.runs import OUTPUTS, RESULT, read_lines
from engine.tasks import bench as bench_task
from engine.tasks import bench_side, bench_turns
from engine.tasks.base import EXIT_INTERRUPTED, EXIT_OK, TaskContext, run_task
from engine.tasks.bench import Bench
from engine.tasks.interrupts import StopFlag

LINES = ("spec=ngram", "sampling.max_tokens=8", "workload.limit=1")
DRAFT, PLAIN = 1.2, 0.6  # seconds a step; two tokens against one: the true speed-up is 1.00


class Logged(FakeEngine):
    """Each run has one request."""

    name: str
    log: list[str]

    def add(self, prompt: Any, params: Any = None, *, listener: bool = False) -> str:
        self.log.append(self.name)
        return super().add(prompt, params, listener=listener)

    def close(self) -> None:
        self.log.append(f"close {self.name}")
        super().close()


class Machine:
    """A clock that runs with the engines' steps, each of them slower than the one before, and a log of what
    is built, run and closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, drift: float = 0.0) -> None:
        self.now, self.drift, self.log = 0.0, drift, list[str]()
        monkeypatch.setattr(bench_side, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def engine(self, name: str, width: int, seconds: float) -> Callable[[], FakeEngine]:
        def build() -> FakeEngine:
            self.log.append(f"build {name}")
            made = Logged(width=width)
            made.name, made.log = name, self.log
            made.on_step = lambda step: self.spend(seconds)
            return made

        return build

    def spend(self, seconds: float) -> None:
        self.now += seconds * (1 + self.drift * self.now)

    def both(self) -> list[Callable[[], FakeEngine]]:
        return [self.engine("A", 2, DRAFT), self.engine("B", 1, PLAIN)]


def bench(
    tmp_path: Path, engines: list[Callable[[], Any]], **options: Any
) -> tuple[int, dict[str, Any], Any]:
    waiting = iter(engines)
    context: TaskContext = context_of(tmp_path, [], *LINES)
    object.__setattr__(context, "make_engine", lambda config: next(waiting)())
    code = run_task(Bench(Bench.Config(**options)), context, "text")
    return code, json.loads((context.folder().path / RESULT).read_text()), context


def test_both_take_turns_and_each_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    code, result, _ = bench(tmp_path, machine.both(), warmup=1, repeats=4)
    assert code == EXIT_OK
    assert machine.log == ["build A", "A", "build B", "B", *"ABBAABBA", "close B", "close A"]
    assert result["in_turns"] is True
    assert (result["repeats"], len(result["speedup_pairs"]["ratios"])) == (4, 4)


def test_without_warm_up_the_first_run_comes_before_the_other_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch)
    bench(tmp_path, machine.both(), warmup=0, repeats=3)
    assert machine.log == ["build A", "A", "build B", *"BBAAB", "close B", "close A"]


def test_a_machine_that_gets_slower_does_not_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, result, context = bench(tmp_path, Machine(monkeypatch, 0.004).both(), warmup=1, repeats=4)
    pairs = result["speedup_pairs"]
    assert result["speedup"] == pytest.approx(1.0, abs=0.01)
    assert result["output_tokens_per_s"] < 0.9 * 8 / (4 * DRAFT), "the machine has drifted"
    assert pairs["low"] == min(pairs["ratios"]) < 1 < pairs["high"] == max(pairs["ratios"])
    line = next(line for line in text_of(context.stdout).splitlines() if "speed-up" in line)
    assert f"median of 4 pairs of runs in turns, {pairs['low']:.2f}x to {pairs['high']:.2f}x" in line


def test_one_after_the_other_is_said_and_shows_the_drift(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order that turns replace: the same machine, and a ratio that is wrong."""
    machine = Machine(monkeypatch, 0.004)
    monkeypatch.setattr(bench_turns, "free_memory_bytes", lambda device: 1 << 20)
    _, result, context = bench(tmp_path, machine.both(), warmup=1, repeats=4)
    assert machine.log == ["build A", *"AAAAA", "close A", "build B", *"BBBBB", "close B", "close A"]
    assert result["speedup"] > 1.05
    assert (result["in_turns"], result["speedup_pairs"]) == (False, None)
    (warning,) = (line for line in result["warnings"] if line.startswith("not in turns"))
    assert "a second engine takes up to 3.0 MiB and 1.0 MiB are free" in warning
    assert "cache.tokens" in warning
    shown = text_of(context.stdout)
    assert f"  ! {warning}" in shown
    assert "one after the other" in shown


@pytest.mark.parametrize("done", [0, 1])
def test_plain_decoding_that_fails_alone_too_leaves_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    """Without room beside the drafts, and out of memory again after all repeats with them."""
    machine = Machine(monkeypatch)
    monkeypatch.setattr(bench_turns, "free_memory_bytes", lambda device: 1 << 20)
    first, second = machine.both()

    def runs_out() -> FakeEngine:
        made, runs = second(), 1 + done  # the warm-up is one
        made.on_step = lambda step: machine.spend(PLAIN) if machine.log.count("B") <= runs else fail()
        return made

    def fail() -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 8 GiB")

    code, result, context = bench(tmp_path, [first, runs_out], warmup=1, repeats=2)
    assert code == EXIT_OK
    assert (result["repeats"], result["output_tokens_per_s"]) == (2, pytest.approx(2 / DRAFT))
    assert result["speedup"] == (pytest.approx(1.0) if done else None)
    said = result["warnings"][-1]
    assert said.startswith(
        "plain decoding failed after 1 of its runs" if done else "no speed-up: plain decoding"
    )
    assert "CUDA out of memory. Tried to allocate 8 GiB; a smaller cache.tokens" in said
    assert f"  ! {said}" in text_of(context.stdout)
    assert machine.log[-2:] == ["close B", "close A"]
    assert len(read_lines(context.folder().path / OUTPUTS)) == 1


def test_a_bug_of_plain_decoding_alone_keeps_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_turns, "free_memory_bytes", lambda device: 1 << 20)
    first, _ = Machine(monkeypatch).both()
    with pytest.raises(RuntimeError, match="broken"):
        bench(tmp_path, [first, failing(RuntimeError("broken"))], repeats=1)


def failing(error: Exception) -> Callable[[], FakeEngine]:
    def build() -> FakeEngine:
        raise error

    return build


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate")])
def test_an_engine_that_finds_no_memory_beside_the_other_is_built_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    machine = Machine(monkeypatch)
    first, second = machine.both()
    _, result, _ = bench(tmp_path, [first, failing(error), second], repeats=2)
    assert machine.log == ["build A", *"AAA", "close A", "build B", *"BBB", "close B", "close A"]
    assert result["speedup"] == pytest.approx(1.0)
    assert any("memory" in line for line in result["warnings"] if line.startswith("not in turns"))


def test_a_bug_in_the_second_engine_is_no_lack_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch)
    first, second = machine.both()
    with pytest.raises(RuntimeError, match="broken"):
        bench(tmp_path, [first, failing(RuntimeError("broken")), second], repeats=2)
    assert machine.log[-1] == "close A"


def test_a_second_engine_that_is_half_built_is_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its prompts do not fit: what was built goes before the other one runs on."""
    machine = Machine(monkeypatch)
    first, second = machine.both()

    def narrow() -> FakeEngine:
        made = second()
        made.max_context = 4
        return made

    _, result, _ = bench(tmp_path, [first, narrow, second], repeats=1)
    assert machine.log[:5] == ["build A", "A", "build B", "close B", "A"]
    assert result["in_turns"] is False


@pytest.mark.parametrize(("runs", "pairs", "repeats"), [(2, 0, 0), (3, 0, 1), (4, 1, 1), (6, 2, 2)])
def test_a_stop_keeps_whole_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: int, pairs: int, repeats: int
) -> None:
    """After warm-ups of both: run 3 is A's first, run 4 B's, 5 B's second, 6 A's."""
    machine = Machine(monkeypatch)
    stop = StopFlag(io.StringIO())
    monkeypatch.setattr(bench_task, "StopFlag", lambda stderr: stop)
    spent = machine.spend

    def spend(seconds: float) -> None:
        spent(seconds)
        if sum(name in "AB" for name in machine.log) > runs:
            stop.request()

    monkeypatch.setattr(machine, "spend", spend)
    code, result, context = bench(tmp_path, machine.both(), repeats=3)
    assert code == EXIT_INTERRUPTED
    assert result["repeats"] == repeats
    ratios = result["speedup_pairs"]["ratios"] if pairs else []
    assert ratios == [pytest.approx(1.0)] * pairs
    assert (result["speedup"] is None) is (result["speedup_pairs"] is None) is (pairs == 0)
    assert machine.log[-1] == "close A"
    assert (context.folder().path / OUTPUTS).exists() is bool(repeats)
    nothing = "stopped before the first counted run had ended: there are no figures yet"
    assert (
        (nothing in result["warnings"]) is (f"warning: {nothing}\n" in text_of(context.stderr)) is not repeats
    )


def test_memory_and_outputs_are_those_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch)
    monkeypatch.setattr(
        bench_turns, "peak_memory_bytes", lambda device: sum(line.startswith("build") for line in machine.log)
    )
    _, result, context = bench(tmp_path, machine.both(), repeats=2)
    assert result["peak_memory_bytes"] == 1, "what the engine took before there was another"
    assert len(read_lines(context.folder().path / OUTPUTS)) == 1
    assert result["plain"]["output_tokens_per_s"] == pytest.approx(1 / PLAIN)
