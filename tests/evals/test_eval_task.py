"""task=eval on an engine that answers from a book: figures, rows, what the model is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from evals.eval_cases import ROWS, engine, run, solver, write
from scipy.stats import binomtest
from tasks.task_fakes import text_of

from engine.evals.earlier import QUESTION_ID, question_id
from engine.runs import QUESTIONS, RUN, read_lines
from engine.tasks.base import EXIT_OK


def test_accuracy_rows_and_text(tmp_path: Path) -> None:
    script = solver(wrong=[3, 7])
    code, result, rows, context = run(tmp_path, engine(script), "eval=gsm8k", write(tmp_path / "q.jsonl"))
    interval = binomtest(8, 10).proportion_ci(method="wilson")
    assert code == EXIT_OK
    assert (result["task"], result["score"], result["accuracy"]) == ("eval", "flexible", 0.8)
    assert (result["accuracy_low"], result["accuracy_high"]) == pytest.approx((interval.low, interval.high))
    assert result["scores"]["strict"]["correct"] == 8
    assert (result["questions"], result["answered"], result["taken_over"]) == (10, 10, 0)
    assert (result["against"], result["warnings"], result["seed"]) == (None, [], 5)
    assert result["output_tokens"] == sum(len(row["completions"][0]["token_ids"]) for row in rows)
    by_index = sorted(rows, key=lambda row: row["index"])
    assert [row["correct"]["strict"] for row in by_index] == [n not in (3, 7) for n in range(10)]
    assert [row["expected"] for row in by_index] == [str(2 * n) for n in range(10)]
    assert by_index[3]["extracted"] == {"flexible": "7", "strict": "7"}
    assert by_index[3][QUESTION_ID] == question_id(ROWS[3])
    assert read_lines(context.folder().path / QUESTIONS) == ROWS
    shown = text_of(context.stdout)
    assert "10 of 10 questions answered" in shown
    assert "flexible   80.0% (8 of 10; 49.0% to 94.3% at 95%)" in shown
    assert shown.splitlines()[-1] == str(context.folder().path)
    assert json.loads((context.folder().path / RUN).read_text())["device"] == "cpu"


def test_form_and_knowledge_are_told_apart(tmp_path: Path) -> None:
    script = solver(form="It is {}.")
    _, result, _, _ = run(tmp_path, engine(script), "eval=gsm8k", write(tmp_path / "q.jsonl"))
    assert result["scores"]["flexible"]["value"] == 1.0
    assert result["scores"]["strict"]["value"] == 0.0


@pytest.mark.parametrize("chat", ["true", "false"])
def test_both_modes_reach_the_model(tmp_path: Path, chat: str) -> None:
    script = solver(after="assistant: " if chat == "true" else "Answer:")
    overrides = ("eval=gsm8k", write(tmp_path / "q.jsonl"), f"eval.chat={chat}", "eval.shots=2")
    _, result, rows, _ = run(tmp_path, engine(script), *overrides)
    assert result["accuracy"] == 1.0
    assert ("messages" in rows[0]) == (chat == "true")


def test_stop_texts_join_the_users_own(tmp_path: Path) -> None:
    seen = []
    fake = engine(solver(after="Answer:"))
    add = fake.add

    def watched(ids: Any, params: Any = None, *, listener: bool = False) -> str:
        seen.append((params.stop, params.seed))
        return add(ids, params, listener=listener)

    fake.add = watched  # type: ignore[method-assign]
    run(tmp_path, fake, "eval=gsm8k", write(tmp_path / "q.jsonl"), "eval.chat=false", "sampling.stop=[END]")
    assert {stop for stop, _ in seen} == {("END", "\nQuestion:")}
    assert len({seed for _, seed in seen}) == 10, "each question has a seed of its own"


@pytest.mark.parametrize("concurrency", [1, 3, None])
def test_json_is_one_object_and_concurrency_bounds_what_runs(tmp_path: Path, concurrency: int | None) -> None:
    _, result, _, context = run(
        tmp_path,
        engine(solver()),
        "eval=gsm8k",
        write(tmp_path / "q.jsonl"),
        format="json",
        concurrency=concurrency,
    )
    assert json.loads(text_of(context.stdout)) == {**result, "run": str(context.folder().path)}
    assert result["metrics"]["peak_running"] == (concurrency or 10)


def test_cut_answers_are_counted_and_told(tmp_path: Path) -> None:
    _, result, _, context = run(
        tmp_path, engine(solver()), "eval=gsm8k", write(tmp_path / "q.jsonl"), "sampling.max_tokens=3"
    )
    assert (result["cut_by_length"], result["accuracy"]) == (10, 0.0)
    assert "10 of 10 answers were cut at sampling.max_tokens" in text_of(context.stdout)


def test_a_check_that_was_not_asked_for_has_no_accuracy(tmp_path: Path) -> None:
    code, result, rows, context = run(
        tmp_path, engine(lambda ids: 97), "eval=humaneval", "eval.path=sample", "sampling.max_tokens=4"
    )
    assert code == EXIT_OK
    assert (result["accuracy"], result["accuracy_low"]) == (None, None)
    assert {row["completion"] for row in rows} == {"aaaa"}
    assert all(row["correct"] == {"pass@1": None} for row in rows)
    assert "not checked" in text_of(context.stdout)
    assert "eval.run_code=true" in text_of(context.stdout)


def test_progress_says_how_many_were_right_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.tasks.progress.LINE_SECONDS", 0.0)
    fake = engine(solver(wrong=range(10)))
    _, _, _, context = run(tmp_path, fake, "eval=gsm8k", write(tmp_path / "q.jsonl"), concurrency=1)
    lines = [line for line in text_of(context.stderr).splitlines() if line.startswith("questions: ")]
    assert len(lines) == 10
    assert lines[-1].startswith("questions: 10/10, ")
    assert lines[-1].endswith(", 0.0% right")
