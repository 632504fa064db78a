"""task=eval against another configuration or an earlier run, question by question."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evals.eval_cases import engine, run, solver, write
from scipy.stats import binomtest
from tasks.task_fakes import context_of, text_of

from engine.runs import OUTPUTS, RESULT, read_lines
from engine.tasks.base import EXIT_INTERRUPTED, EXIT_OK, run_task
from engine.tasks.eval import Eval


def test_two_configurations_in_one_run(tmp_path: Path) -> None:
    engines = [engine(solver(wrong=[1])), engine(solver(wrong=[1, 4, 5, 6, 8, 9, 2]))]
    code, result, rows, context = run(
        tmp_path,
        engines,
        "eval=gsm8k",
        write(tmp_path / "q.jsonl"),
        "eval.against=overlap=none cache=none",
    )
    found = result["against"]
    assert code == EXIT_OK
    assert found["name"] == "overlap=none cache=none"
    assert {key.partition(".")[0] for key in found["differs"]} == {"overlap", "cache"}
    assert (found["compared"], found["identical_answers"]) == (10, 4)
    pair = found["pairs"]["strict"]
    assert (pair["both"], pair["only_this"], pair["only_other"], pair["neither"]) == (3, 6, 0, 1)
    assert pair["p_value"] == pytest.approx(binomtest(6, 6).pvalue)
    assert pair["difference"] == 0.6
    assert found["scores"]["flexible"]["value"] == 0.3
    assert len(rows) == 20
    assert sum(row.get("path") == "against" for row in rows) == 10
    shown = text_of(context.stdout)
    assert "a difference (McNemar, exact, p = 0.0312)" in shown
    assert [fake.closed for fake in engines] == [True, True]


def test_an_earlier_run_on_the_same_questions(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl")
    _, _, _, first = run(
        tmp_path / "a", engine(solver(wrong=[2])), "eval=gsm8k", path, "eval.limit=6", "overlap=none"
    )
    _, result, rows, context = run(
        tmp_path / "b", engine(solver(wrong=[3])), "eval=gsm8k", path, f"eval.against={first.folder().path}"
    )
    found = result["against"]
    assert found["name"] == str(first.folder().path)
    assert (found["compared"], found["identical_answers"], found["other_answers"]) == (
        6,
        4,
        ["gsm8k/2", "gsm8k/3"],
    )
    assert all(key.startswith("overlap") for key in found["differs"])
    assert (found["pairs"]["strict"]["only_this"], found["pairs"]["strict"]["only_other"]) == (1, 1)
    assert found["pairs"]["strict"]["p_value"] == 1.0
    assert len(rows) == 10
    assert "no difference shown" in text_of(context.stdout)


def test_a_comparison_without_checks_still_counts_identical_answers(tmp_path: Path) -> None:
    engines = [engine(lambda ids: 97), engine(lambda ids: 97)]
    overrides = ("eval=humaneval", "eval.path=sample", "sampling.max_tokens=4", "eval.against=overlap=none")
    _, result, _, _ = run(tmp_path, engines, *overrides)
    assert result["against"]["identical_answers"] == 4
    assert result["against"]["pairs"] == {"pass@1": None}


def test_a_stop_before_the_comparison_keeps_the_runs_own_figures(tmp_path: Path) -> None:
    fake = engine(solver())
    fake.on_step = lambda step: os.kill(os.getpid(), signal.SIGINT) if step == 6 else None
    code, result, _, context = run(
        tmp_path, [fake], "eval=gsm8k", write(tmp_path / "q.jsonl"), "eval.against=overlap=none"
    )
    assert code == EXIT_INTERRUPTED
    assert result["against"] is None
    assert result["answered"] == len(read_lines(context.folder().path / OUTPUTS))
    assert json.loads((context.folder().path / RESULT).read_text()) == result


def test_both_sides_draw_by_one_seed(tmp_path: Path) -> None:
    built = []
    engines = iter([engine(solver(), seed=77), engine(solver())])
    overrides = ("task=eval", "eval=gsm8k", write(tmp_path / "q.jsonl"), "eval.against=overlap=none")
    context = context_of(tmp_path, [], *overrides)

    def make(config: Any) -> Any:
        built.append((config["seed"], config["overlap"]["_target_"]))
        return next(engines)

    assert run_task(Eval(Eval.Config()), replace(context, make_engine=make), "text") == EXIT_OK
    assert built == [(None, "engine.loop.OverlapLoop"), (77, "engine.loop.SerialLoop")]
