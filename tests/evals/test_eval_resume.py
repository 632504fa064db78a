"""task=eval interrupted and gone on with: no answer is lost, none is asked twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from evals.eval_cases import ROWS, engine, run, solver, write
from tasks.task_fakes import context_of, text_of

from engine.errors import UserError
from engine.tasks.base import EXIT_INTERRUPTED, EXIT_OK, run_task


def interrupted(tmp_path: Path, *more: str) -> tuple[dict[str, Any], list[dict[str, Any]], Path]:
    """A run that Ctrl-C stopped when some answers were there: they are of different lengths."""
    fake = engine(solver(wrong=[1], form="because #### {}"))
    steps = len("because #### 2") + 1
    fake.on_step = lambda step: os.kill(os.getpid(), signal.SIGINT) if step == steps else None
    code, result, rows, context = run(
        tmp_path / "first", fake, "eval=gsm8k", write(tmp_path / "q.jsonl"), *more
    )
    assert code == EXIT_INTERRUPTED
    assert "eval.resume=" in text_of(context.stdout)
    return result, rows, context.folder().path


def test_ctrl_c_loses_no_answer_and_resume_asks_the_others_only(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    result, rows, folder = interrupted(tmp_path)
    assert result["interrupted"] is True
    assert 0 < result["answered"] == len(rows) < 10
    assert {row["index"] for row in rows} == set(range(5))  # 2n has one digit
    fake = engine(solver(wrong=[1], form="because #### {}"))
    code, again, more, _ = run(
        tmp_path / "second", fake, "eval=gsm8k", write(tmp_path / "q.jsonl"), f"eval.resume={folder}"
    )
    assert code == EXIT_OK
    assert (again["answered"], again["taken_over"], again["requests"]) == (10, 5, 5)
    assert again["accuracy"] == 0.9
    assert sorted(row["index"] for row in more) == list(range(10))
    whole = engine(solver(wrong=[1], form="because #### {}"))
    _, straight, rows, _ = run(tmp_path / "third", whole, "eval=gsm8k", write(tmp_path / "q.jsonl"))
    assert straight["scores"] == again["scores"]
    ids = lambda found: {row["index"]: row["completions"][0]["token_ids"] for row in found}  # noqa: E731
    assert ids(rows) == ids(more)


def test_a_finished_run_is_marked_again_without_an_engine(tmp_path: Path) -> None:
    """A completion that was only written out is checked later, on another machine perhaps."""
    overrides = ("eval=humaneval", "eval.path=sample", "sampling.max_tokens=4")
    _, _, _, first = run(tmp_path / "a", engine(lambda ids: 97), *overrides)
    code, result, rows, _ = run(
        tmp_path / "b", [], *overrides, "eval.run_code=true", f"eval.resume={first.folder().path}"
    )
    assert code == EXIT_OK
    assert (result["taken_over"], result["requests"], result["accuracy"]) == (4, 0, 0.0)
    assert result["seed"] == 5
    assert all("NameError" in row["failure"] or "SyntaxError" in row["failure"] for row in rows)


@pytest.mark.parametrize("other", ["sampling.max_tokens=99", "eval.shots=1", "model.seed=3"])
def test_answers_made_with_other_settings_are_not_taken_over(tmp_path: Path, other: str) -> None:
    path = write(tmp_path / "q.jsonl")
    _, _, _, first = run(tmp_path / "a", engine(solver()), "eval=gsm8k", path)
    with pytest.raises(UserError, match=f"other settings .*{other.partition('=')[0]}"):
        run(tmp_path / "b", [], "eval=gsm8k", path, other, f"eval.resume={first.folder().path}")


def test_a_larger_limit_and_a_moved_file_keep_what_is_known(tmp_path: Path) -> None:
    _, _, _, first = run(
        tmp_path / "a", engine(solver()), "eval=gsm8k", write(tmp_path / "q.jsonl"), "eval.limit=4"
    )
    moved = write(tmp_path / "r.jsonl", list(reversed(ROWS)))
    _, result, rows, _ = run(
        tmp_path / "b", engine(solver()), "eval=gsm8k", moved, f"eval.resume={first.folder().path}"
    )
    assert (result["taken_over"], result["requests"], result["accuracy"]) == (4, 6, 1.0)
    assert {row["index"]: row["expected"] for row in rows} == {9 - n: str(2 * n) for n in range(10)}


def test_a_folder_of_another_task_is_no_earlier_run(tmp_path: Path) -> None:
    from engine.tasks.generate import Generate

    context = context_of(tmp_path, engine(lambda ids: 97), "prompt=x", "sampling.max_tokens=2")
    run_task(Generate(Generate.Config()), context, "text")
    with pytest.raises(UserError, match=r"eval\.resume=.*holds no marked answers"):
        run(
            tmp_path / "b",
            [],
            "eval=gsm8k",
            "eval.path=sample",
            f"eval.resume={context.folder().path}",
        )
