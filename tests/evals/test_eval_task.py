"""task=eval on an engine that answers from a book: figures, rows, interruption, resume, paired comparison."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evals.eval_cases import ROWS, engine, run, solver, write
from scipy.stats import binomtest
from tasks.task_fakes import context_of, text_of

from engine.errors import UserError
from engine.evals.earlier import QUESTION_ID, question_id
from engine.explain import explain_overrides
from engine.rules import compose_checked
from engine.runs import OUTPUTS, QUESTIONS, RESULT, RUN, read_lines
from engine.tasks.base import EXIT_INTERRUPTED, EXIT_OK, run_task
from engine.tasks.eval import Eval


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


# --- what is refused, and when ---


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([], "choose eval=gsm8k or eval=humaneval"),
        (["eval=gsm8k"], "eval=gsm8k needs its data: set eval.path=FILE"),
        (["eval=humaneval"], "eval.path=sample"),
        (["eval=gsm8k", "eval.path=/no/such.jsonl"], "cannot read eval.path=/no/such.jsonl"),
        (["eval=gsm8k", "eval.path=sample", "prompt=hi"], "leave prompt out"),
        (["eval=gsm8k", "eval.path=sample", "task=bench"], "task=bench asks no questions of eval=gsm8k"),
        (["eval=gsm8k", "eval.path=sample", "arrivals=poisson"], "use arrivals=none"),
        (["eval=gsm8k", "eval.path=sample", "eval.against=nonsense"], "neither a run folder nor overrides"),
        (["eval=gsm8k", "eval.path=sample", "eval.against='spec=none"], "eval.against"),
        (["eval=gsm8k", "eval.path=sample", "eval.against=/tmp"], "not a readable run folder"),
        (["eval=gsm8k", "eval.path=sample", "eval.against=eval=humaneval"], "leave out eval=humaneval"),
        (["eval=gsm8k", "eval.path=sample", "eval.resume=/no/such"], "eval.resume=/no/such"),
        (["eval=gsm8k", "eval.path=sample", "spec=ngram", "spec.simulate_accept_length=2"], "task=bench"),
    ],
)
def test_startup_refuses_before_a_model_is_read(overrides: list[str], words: str) -> None:
    task = [] if any(line.startswith("task=") for line in overrides) else ["task=eval"]
    with pytest.raises(UserError) as caught:
        compose_checked([*task, "model=tiny", "device=cpu", *overrides])
    assert words in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["sampling.n=2"], "sampling.n=2"),
        (["eval.against=spec=nono"], "spec has no option nono"),
        (["eval.against=model=tiny"], "changes nothing"),
        (["eval.against=eval.path=/no/such"], "cannot read eval.path=/no/such"),
    ],
)
def test_a_run_that_cannot_be_compared_builds_no_engine(
    tmp_path: Path, overrides: list[str], words: str
) -> None:
    with pytest.raises(UserError) as caught:
        run(tmp_path, [], "eval=gsm8k", write(tmp_path / "q.jsonl"), *overrides)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("path", "verdict", "words"),
    [("sample", "ok", "eval=gsm8k can be read"), ("/no/such", "violated", "cannot read eval.path=/no/such")],
)
def test_explain_judges_the_questions(path: str, verdict: str, words: str) -> None:
    found = explain_overrides(["task=explain", "model=tiny", "eval=gsm8k", f"eval.path={path}"])
    rule = next(v for v in found.verdicts if v.rule == "evaluation")
    assert rule.verdict == verdict
    assert words in rule.reason
    assert found.accepted is (verdict == "ok")


@pytest.mark.parametrize(
    ("lines", "verdict", "words"),
    [
        ([], "not applicable", "task=eval asks no workload"),
        (["workload=prompts"], "not applicable", "task=eval asks no workload"),
        (["workload=file"], "violated", "so workload=file would change nothing; leave it out"),
        (["workload.limit=3"], "violated", "so workload.limit=3 would change nothing"),
    ],
)
def test_a_workload_that_nobody_asks_is_refused_by_name(lines: list[str], verdict: str, words: str) -> None:
    found = explain_overrides(["task=eval", "model=tiny", "eval=gsm8k", "eval.path=sample", *lines])
    rule = next(v for v in found.verdicts if v.rule == "workload")
    assert rule.verdict == verdict
    assert words in rule.reason
    assert found.facts.parts["eval"].cls.__name__ == "Gsm8kEval"


@pytest.mark.parametrize("task", ["chat", "train_eagle3"])
def test_other_tasks_without_a_workload_refuse_one_too(task: str) -> None:
    found = explain_overrides([f"task={task}", "model=tiny", "workload.limit=3"])
    assert f"task={task} asks no workload" in next(v for v in found.verdicts if v.violated).reason


# --- interruption and resume ---


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


# --- paired comparison ---


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


def test_progress_says_how_many_were_right_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.tasks.progress.LINE_SECONDS", 0.0)
    fake = engine(solver(wrong=range(10)))
    _, _, _, context = run(tmp_path, fake, "eval=gsm8k", write(tmp_path / "q.jsonl"), concurrency=1)
    lines = [line for line in text_of(context.stderr).splitlines() if line.startswith("questions: ")]
    assert len(lines) == 10
    assert lines[-1].startswith("questions: 10/10, ")
    assert lines[-1].endswith(", 0.0% right")


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
