"""SIGTERM, as `timeout`, containers and schedulers send it, and Ctrl-C end a task alike: what was finished is
kept and said. Real processes on the tiny model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from task_fakes import FakeEngine, context_of, spell, text_of

from engine.code_state import PACKAGE_ROOT
from engine.runs import OUTPUTS, RESULT, WORKLOAD, read_lines
from engine.tasks.base import EXIT_INTERRUPTED, run_task
from engine.tasks.chat import Chat
from engine.tasks.generate import Generate
from engine.tasks.interrupts import NOTICE
from engine.termination import sigterm_as_ctrl_c

TINY = ("model=tiny", "device=cpu", "threads=1", "spec=none", "sampling.max_tokens=4")
MANY = 5000  # more than are answered before the signal comes
PROMPTS = ("workload=file", "workload.path=prompts.txt", "scheduler.max_running=1")
QUESTIONS = ("task=eval", "eval=gsm8k", "eval.path=questions.jsonl", "scheduler.max_running=1")
BENCH = ("task=bench", "task.warmup=0", f"task.repeats={MANY}", "workload.limit=1")
NOTHING_YET = ("task=bench", "task.warmup=100000", "workload.limit=1")
Process = subprocess.Popen[str]


def until(there: Callable[[], bool], process: Process) -> None:
    deadline = time.monotonic() + 120
    while not there():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def answered(folder: Path) -> bool:
    return (folder / OUTPUTS).exists() and (folder / OUTPUTS).read_text().count("\n") >= 2


def processor_seconds(process: Process) -> float:
    """That it has used, however busy the machine is: "pid (name) state ..." of Linux's table."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def worked(folder: Path, process: Process) -> None:
    """Some time with the requests, whose end is not to be seen from outside."""
    until((folder / WORKLOAD).exists, process)
    begun = processor_seconds(process)
    until(lambda: processor_seconds(process) > begun + 0.7, process)


def stopped(
    tmp_path: Path, number: signal.Signals, *arguments: str
) -> tuple[dict[str, Any], list[dict[str, Any]], str, str]:
    """(result.json, outputs, stdout, stderr) of a run that a signal has met in the middle of its requests."""
    (tmp_path / "prompts.txt").write_text("\n".join(f"prompt {n}" for n in range(MANY)))
    row = {"question": "What is 1 + 1?", "answer": "1 + 1 = 2\n#### 2"}
    lines = (json.dumps({**row, "question": f"What is {n} + 1?"}) for n in range(MANY))
    (tmp_path / "questions.jsonl").write_text("\n".join(lines))
    folder = tmp_path / "run"
    command = [sys.executable, "-P", "-m", "engine", *TINY, *arguments, f"hydra.run.dir={folder}"]
    pipes: dict[str, Any] = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "stdin": subprocess.DEVNULL,
    }
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, text=True, **pipes)
    if arguments in ((*PROMPTS,), QUESTIONS):
        until(lambda: answered(folder), process)
    else:
        worked(folder, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == EXIT_INTERRUPTED, err
    assert NOTICE in err
    assert "Traceback" not in err
    assert out.splitlines()[-1] == str(folder)
    result = json.loads((folder / RESULT).read_text())
    assert result["interrupted"] is True
    return result, read_lines(folder / OUTPUTS) if (folder / OUTPUTS).exists() else [], out, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_benchmark_keeps_its_counted_runs(tmp_path: Path, number: signal.Signals) -> None:
    result, rows, out, _ = stopped(tmp_path, number, *BENCH)
    assert 1 <= result["repeats"] == len(result["runs"]) < MANY
    assert result["output_tokens_per_s"] > 0
    assert len(rows) == 1
    assert f"median of {result['repeats']} run(s)" in out
    assert f"stopped after {result['repeats']} of {MANY} counted runs" in out


def test_a_benchmark_without_a_counted_run_says_that_there_are_no_figures(tmp_path: Path) -> None:
    result, rows, _, err = stopped(tmp_path, signal.SIGTERM, *NOTHING_YET)
    assert (result["repeats"], result["runs"], rows) == (0, [], [])
    assert err.endswith("warning: stopped before the first counted run had ended: there are no figures yet\n")


def test_answers_so_far_are_kept(tmp_path: Path) -> None:
    result, rows, out, _ = stopped(tmp_path, signal.SIGTERM, *PROMPTS)
    whole = [row for row in rows if row["completions"][0]["finish_reason"] != "cancelled"]
    assert 2 <= len(whole) < MANY
    assert sum(len(row["completions"][0]["token_ids"]) for row in rows) == result["output_tokens"]
    assert f"answers, {result['output_tokens']} tokens" in out


def test_marked_answers_are_kept_and_the_way_on_is_said(tmp_path: Path) -> None:
    result, rows, out, _ = stopped(tmp_path, signal.SIGTERM, *QUESTIONS)
    assert 2 <= len(rows) == result["answered"] < MANY
    assert f"interrupted: eval.resume={tmp_path / 'run'} goes on from here" in out


def test_a_check_that_was_stopped_is_incomplete_and_builds_no_reference(tmp_path: Path) -> None:
    result, rows, out, _ = stopped(tmp_path, signal.SIGTERM, "task=verify", *PROMPTS)
    assert (result["verdict"], result["answers"]) == ("incomplete", 0)
    assert result["seconds"]["reference"] == 0.0 < result["seconds"]["chosen"]
    assert {row["path"] for row in rows} == {"chosen"}
    assert "incomplete: 0 pass" in out


def test_while_a_model_is_read_it_ends_at_once_and_is_said_too(tmp_path: Path) -> None:
    """As Ctrl-C outside of any step."""
    context = context_of(tmp_path, [])
    object.__setattr__(context, "make_engine", lambda config: signal.raise_signal(signal.SIGTERM))
    with sigterm_as_ctrl_c():
        code = run_task(Generate(Generate.Config()), context, "text")
    assert code == EXIT_INTERRUPTED
    assert text_of(context.stderr) == "interrupted\n"
    assert json.loads((context.folder().path / RESULT).read_text()) == {"interrupted": True}


def test_sigterm_leaves_a_chat_with_what_was_said(tmp_path: Path) -> None:
    engine = FakeEngine(spell("a long answer"))
    engine.on_step = lambda step: signal.raise_signal(signal.SIGTERM) if step == 3 else None
    context = context_of(tmp_path, engine, stdin="one\ntwo\n")
    code = run_task(Chat(Chat.Config()), context, "text")
    rows = read_lines(context.folder().path / OUTPUTS)
    assert code == EXIT_INTERRUPTED
    assert [(row["prompt"], row["completions"][0]["text"]) for row in rows] == [("one", "a l")]
    assert json.loads((context.folder().path / RESULT).read_text())["turns"] == 1
    assert "answer stopped" in text_of(context.stderr)
    assert engine.closed
