"""Runs that somebody stopped: a replay stops the same requests at the same steps and begins nothing else."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.answers import Delta
from engine.core import EngineCore
from engine.tasks.base import EXIT_INTERRUPTED, EXIT_OK

pytestmark = pytest.mark.usefixtures("batch_matters")


@pytest.fixture
def press(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Ctrl-C after these turns of the run's engines; later runs are left alone."""

    def at(*turns: int) -> None:
        left, plain, count = list(turns), EngineCore.step, 0

        def step(self: EngineCore) -> list[Delta]:
            nonlocal count
            news = plain(self)
            count += 1
            if left and count == left[0]:
                left.pop(0)
                signal.raise_signal(signal.SIGINT)
            return news

        monkeypatch.setattr(EngineCore, "step", step)

    return at


def finishes(folder: Path) -> list[str]:
    rows = [json.loads(line) for line in (folder / "outputs.jsonl").read_text().splitlines()]
    return [sample["finish_reason"] for row in rows for sample in row["completions"]]


def test_an_answer_of_a_chat_that_was_stopped(run: Any, again: Any, press: Any) -> None:
    press(4, 9)
    folder = run("task=chat", "sampling=creative", "sampling.max_tokens=8", stdin="a\nb\nc\nd\n")
    assert finishes(folder).count("cancelled") == 2
    code, out, report = again(folder)
    assert (code, report["answers"], report["courses"][0]["parted"]) == (EXIT_OK, 4, None)
    new = Path(out.splitlines()[-1])
    for name in ("schedule.jsonl", "workload.jsonl"):
        assert (new / name).read_bytes() == (folder / name).read_bytes()
    assert finishes(new) == finishes(folder)


@pytest.mark.parametrize(
    ("turns", "overrides"),
    [
        (12, ("sampling.max_tokens=40",)),
        (12, ("sampling.max_tokens=40", "overlap=none", "scheduler.max_running=3")),
        (150, ("sampling.max_tokens=10", "task=bench", "task.repeats=5", "task.concurrency=2")),
        (60, ("sampling.max_tokens=10", "task=bench", "spec=ngram", "spec.adaptive=false")),  # in turns
    ],
)
def test_a_run_that_was_interrupted(
    run: Any, again: Any, press: Any, turns: int, overrides: tuple[str, ...]
) -> None:
    press(turns)
    folder = run(*overrides, code=EXIT_INTERRUPTED)
    code, out, report = again(folder)
    assert (code, report["identical"], report["courses"][0]["parted"]) == (EXIT_OK, True, None), out
    assert report["courses"][0]["steps"] == report["courses"][0]["recorded"] > 4


def test_what_had_not_begun_is_not_begun(run: Any, again: Any, press: Any) -> None:
    """Of a conversation only the first turn ran: the replay does not ask the second."""
    press(5)
    folder = run("workload=multi_turn", "workload.count=2", "sampling.max_tokens=30", code=EXIT_INTERRUPTED)
    code, out, _ = again(folder)
    assert code == EXIT_OK, out
    old, new = (
        sum(len(sample["token_ids"]) for row in map(json.loads, text) for sample in row["completions"])
        for text in (
            (place / "outputs.jsonl").read_text().splitlines()
            for place in (folder, Path(out.splitlines()[-1]))
        )
    )
    assert new == old > 0


def test_a_run_that_was_torn_down(run: Any, again: Any, press: Any) -> None:
    """The second Ctrl-C ends it at once: no result, outputs of what had ended by then."""
    press(12, 13)
    folder = run("scheduler.max_running=3", "sampling.max_tokens=7", code=EXIT_INTERRUPTED)
    assert len(finishes(folder)) < 8
    code, out, report = again(folder)
    assert (code, report["answers"]) == (EXIT_OK, len(finishes(folder))), out


@pytest.mark.parametrize("left", [0, 1, 7, 12])
def test_a_run_that_was_killed(run: Any, again: Any, tmp_path: Path, left: int) -> None:
    """Whatever was written by then, the answers that were are compared."""
    whole = run("scheduler.max_running=3", "sampling.max_tokens=7")
    folder = tmp_path / "killed"
    shutil.copytree(whole, folder)
    (folder / "result.json").unlink()
    for name, count in (("outputs.jsonl", 2), ("schedule.jsonl", left)):
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:count]) + lines[count][:5])
    code, out, report = again(folder)
    assert (code, report["identical"], report["answers"]) == (EXIT_OK, True, 2), out


def test_a_request_that_was_still_to_come(run: Any, again: Any, press: Any, tmp_path: Path) -> None:
    """By the clock: in a replay the third is handed over at once, and the run had ended before it."""
    press(12)
    rows = [{"prompt": "one"}, {"prompt": "two", "at": 0.01}, {"prompt": "three", "at": 5}]
    file = tmp_path / "three.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = run("workload=file", f"workload.path={file}", "sampling.max_tokens=40", code=EXIT_INTERRUPTED)
    code, out, report = again(folder)
    assert (code, report["identical"], report["courses"][0]["parted"]) == (EXIT_OK, True, None), out
    assert report["courses"][0]["steps"] == report["courses"][0]["recorded"] > 4
