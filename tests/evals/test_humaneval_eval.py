"""eval=humaneval: prompts, completions out of chats, tests that run only when asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from evals.eval_cases import evaluation, write

from engine.errors import UserError
from engine.evals import humaneval
from engine.evals.humaneval import STOP, completion
from engine.rules import compose_checked
from engine.workloads.humaneval import HUMANEVAL

DATA = Path(__file__).parents[3] / "shared" / "data" / "humaneval" / "humaneval.jsonl"
ROW = {
    "task_id": "T/0",
    "prompt": 'import math\n\n\ndef twice(x):\n    """Return 2 x."""\n',
    "entry_point": "twice",
    "test": "def check(candidate):\n    assert candidate(3) == 6\n",
}
RIGHT = "    return 2 * x\n"


def test_a_completion_continues_the_prompt_as_it_is(tmp_path: Path) -> None:
    made = evaluation("eval=humaneval", write(tmp_path / "q.jsonl", [ROW]))
    (question,) = made.questions()
    assert question.item.prompt == ROW["prompt"]
    assert (question.name, question.row, made.stop) == ("T/0", ROW, STOP)
    assert not made.config.chat


def test_nothing_runs_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("a program was run")

    monkeypatch.setattr(humaneval, "run_program", never)
    made = evaluation("eval=humaneval", write(tmp_path / "q.jsonl", [ROW]))
    mark = made.mark(made.questions()[0], RIGHT)
    assert mark.correct == {"pass@1": None}
    assert mark.columns == {"task_id": "T/0", "completion": RIGHT}
    assert "eval.run_code=true" in made.warnings()[0]


@pytest.mark.parametrize(
    ("text", "passed", "failure"),
    [
        (RIGHT, True, None),
        ("    return 2 * math.floor(x)", True, None),
        ("    return 3 * x\n", False, "AssertionError"),
        ("    return x +\n", False, "SyntaxError: invalid syntax (program.py, line 6)"),
        ("", False, "AssertionError"),
        ("    while True:\n        pass\n", False, "ran longer than 1 s"),
    ],
)
def test_the_tests_decide(tmp_path: Path, text: str, passed: bool, failure: str | None) -> None:
    made = evaluation(
        "eval=humaneval", write(tmp_path / "q.jsonl", [ROW]), "eval.run_code=true", "eval.seconds=1"
    )
    mark = made.mark(made.questions()[0], text)
    assert mark.correct == {"pass@1": passed}
    assert mark.columns["failure"] == failure


@pytest.mark.parametrize(
    "answer",
    [
        "```python\ndef twice(x):\n    return 2 * x\n```",
        "Here it is:\n```\ndef twice(x):\n    return 2 * x\n```\nIt doubles x.",
        "```py\nimport os\n\n    def twice(x):\n        return 2 * x\n```".replace("import os\n\n", ""),
        "def twice(x):\n    return 2 * x",
        "```python\nreturn 2 * x\n```",
        "    return 2 * x",
        "```python\ndef twice(x):\n    return 2 * x",
    ],
)
def test_chats_answer_in_blocks_in_bodies_and_in_whole_functions(tmp_path: Path, answer: str) -> None:
    made = evaluation(
        "eval=humaneval", write(tmp_path / "q.jsonl", [ROW]), "eval.run_code=true", "eval.chat=true"
    )
    (question,) = made.questions()
    asked = question.item.messages[0]["content"]
    assert "```python\nimport math" in asked
    assert made.stop == ()
    mark = made.mark(question, answer)
    assert mark.correct == {"pass@1": True}, mark
    assert mark.columns["completion"] == completion(answer, "twice")


def test_a_function_of_another_name_is_a_body_that_fails(tmp_path: Path) -> None:
    made = evaluation(
        "eval=humaneval", write(tmp_path / "q.jsonl", [ROW]), "eval.run_code=true", "eval.chat=true"
    )
    mark = made.mark(made.questions()[0], "```python\ndef twice_as(x):\n    return 2 * x\n```")
    assert mark.correct == {"pass@1": False}


@pytest.mark.parametrize("key", ["prompt", "entry_point", "test"])
def test_a_row_without_what_a_check_needs_is_named(tmp_path: Path, key: str) -> None:
    bad = {name: value for name, value in ROW.items() if name != key}
    path = write(tmp_path / "q.jsonl", [ROW, bad])
    with pytest.raises(UserError, match=rf"line 2: needs the key {key}"):
        compose_checked(["task=eval", "eval=humaneval", path, "model=tiny", "device=cpu"])


def own_solutions(file: Path, limit: str) -> list[Any]:
    made = evaluation("eval=humaneval", f"eval.path={file}", "eval.run_code=true", limit)
    questions = made.questions()
    return [
        (question.name, dict(made.mark(question, text).correct))
        for question in questions
        for text in (question.row["canonical_solution"], "    return None\n")
    ]


def test_the_samples_own_solutions_pass_and_others_do_not() -> None:
    marks = own_solutions(HUMANEVAL.sample, "eval.limit=100")
    assert [mark["pass@1"] for _, mark in marks] == [True, False] * (len(marks) // 2)
    assert len(marks) == 8


def test_the_real_solutions_pass() -> None:
    if not DATA.is_file():
        pytest.skip("the data sets are not on this machine")
    marks = own_solutions(DATA, "eval.limit=12")
    assert [mark["pass@1"] for _, mark in marks] == [True, False] * 12
    assert len(DATA.read_text().splitlines()) == 120
    assert json.loads(DATA.read_text().splitlines()[0])["task_id"] == marks[0][0]


@pytest.mark.parametrize(
    ("allowed", "words"),
    [((), "could reach the network"), (("unshare",), None)],
)
def test_a_sandbox_without_walls_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: tuple[str, ...], words: str | None
) -> None:
    monkeypatch.setattr(humaneval, "namespaces", lambda: allowed)
    made = evaluation("eval=humaneval", write(tmp_path / "q.jsonl", [ROW]), "eval.run_code=true")
    assert (words in " ".join(made.warnings())) if words else made.warnings() == []
