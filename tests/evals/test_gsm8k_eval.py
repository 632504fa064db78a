"""eval=gsm8k: how a question is asked in each mode, what examples stand before it, how answers are marked."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from evals.eval_cases import ROWS, evaluation, write

from engine.errors import UserError
from engine.evals.gsm8k import EXAMPLES
from engine.evals.numbers import MARKER, strict_number
from engine.rules import compose_checked
from engine.workloads.gsm8k import GSM8K

DATA = Path(__file__).parents[3] / "shared" / "data" / "gsm8k" / "test.jsonl"


@pytest.mark.parametrize("shots", [0, 1, 3])
def test_a_chat_has_the_examples_as_turns(tmp_path: Path, shots: int) -> None:
    found = evaluation("eval=gsm8k", write(tmp_path / "q.jsonl"), f"eval.shots={shots}").questions()
    messages = found[2].item.messages
    assert [m["role"] for m in messages] == ["user", "assistant"] * shots + ["user"]
    assert messages[-1]["content"].startswith("What is 2 plus 2?\n\n")
    assert MARKER in messages[-1]["content"]
    assert all(strict_number(m["content"]) for m in messages if m["role"] == "assistant")
    assert (found[2].expected, found[2].name, found[2].row) == ("4", "gsm8k/2", ROWS[2])


@pytest.mark.parametrize("shots", [0, 2])
def test_a_text_breaks_off_where_the_answer_begins(tmp_path: Path, shots: int) -> None:
    made = evaluation("eval=gsm8k", write(tmp_path / "q.jsonl"), f"eval.shots={shots}", "eval.chat=false")
    prompt = made.questions()[0].item.prompt
    assert prompt is not None
    assert prompt.endswith("Question: What is 0 plus 0?\nAnswer:")
    assert prompt.count("Question: ") == prompt.count("\nAnswer:") == shots + 1
    assert made.stop == ("\nQuestion:",)
    assert evaluation("eval=gsm8k", write(tmp_path / "q.jsonl")).stop == ()


def test_own_examples_are_right_and_none_is_a_question_of_the_sample() -> None:
    examples = [json.loads(line) for line in EXAMPLES.read_text().splitlines()]
    sample = {json.loads(line)["question"] for line in GSM8K.sample.read_text().splitlines()}
    assert len(examples) == 6
    assert not {e["question"] for e in examples} & sample


@pytest.mark.parametrize("file", [EXAMPLES, GSM8K.sample])
def test_every_worked_step_of_ours_adds_up(file: Path) -> None:
    steps = re.findall(r"(\d[\d.*+/ -]*) = \$?([\d.]+)", file.read_text())
    assert len(steps) > 10
    for left, right in steps:
        assert eval(left) == pytest.approx(float(right.rstrip("."))), (left, right)


def test_a_question_is_never_its_own_example(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    made = evaluation("eval=gsm8k", write(path), "eval.shots=3", f"eval.examples={path}")
    for question in made.questions():
        asked = [m["content"].split("\n")[0] for m in question.item.messages if m["role"] == "user"]
        assert len(asked) == 4
        assert asked.count(asked[-1]) == 1


def test_annotations_for_a_calculator_are_not_shown(tmp_path: Path) -> None:
    path = write(tmp_path / "e.jsonl", [{"question": "a?", "answer": "1+1=<<1+1=2>>2\n#### 2"}])
    file = path.removeprefix("eval.path=")
    made = evaluation(
        "eval=gsm8k", write(tmp_path / "q.jsonl"), "eval.shots=1", f"eval.examples={file}", "eval.chat=false"
    )
    assert "Answer: 1+1=2\n#### 2\n" in str(made.questions()[0].item.prompt)


@pytest.mark.parametrize(
    ("text", "flexible", "strict"),
    [
        ("#### 4", True, True),
        ("so it is 4.", True, False),
        ("#### 5", False, False),
        ("4, or 5", False, False),
    ],
)
def test_marks(tmp_path: Path, text: str, flexible: bool, strict: bool) -> None:
    made = evaluation("eval=gsm8k", write(tmp_path / "q.jsonl"))
    mark = made.mark(made.questions()[2], text)
    assert dict(mark.correct) == {"flexible": flexible, "strict": strict}
    assert set(mark.columns["extracted"]) == {"flexible", "strict"}
    assert made.scores[0] == "flexible"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["eval.shots=7"], "eval.shots=7 asks for more worked examples than gsm8k_examples.jsonl holds"),
        (["eval.shots=1", "eval.examples=/no/such"], "cannot read eval.examples=/no/such"),
        (["eval.limit=0"], "eval.limit=0 has to be at least 1"),
        (["eval.confidence=1"], "eval.confidence=1"),
        (["eval.run_code=true"], "eval has no option run_code"),
    ],
)
def test_wrong_options_are_refused_before_a_model_is_read(overrides: list[str], words: str) -> None:
    with pytest.raises(UserError) as caught:
        compose_checked(
            ["task=eval", "eval=gsm8k", "eval.path=sample", "model=tiny", "device=cpu", *overrides]
        )
    assert words in str(caught.value)


@pytest.mark.parametrize("row", ['{"question": "a?"}', '{"question": "a?", "answer": "4"}', "{}", "["])
def test_a_question_without_its_number_is_named(tmp_path: Path, row: str) -> None:
    (tmp_path / "q.jsonl").write_text(f"{json.dumps(ROWS[0])}\n{row}\n")
    with pytest.raises(UserError, match=r"q\.jsonl, line 2: "):
        compose_checked(
            ["task=eval", "eval=gsm8k", f"eval.path={tmp_path / 'q.jsonl'}", "model=tiny", "device=cpu"]
        )


def test_seed_and_limit_choose_questions(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl")
    names = lambda *more: [q.row["question"] for q in evaluation("eval=gsm8k", path, *more).questions()]  # noqa: E731
    assert names("eval.limit=3") == [row["question"] for row in ROWS[:3]]
    assert names("eval.limit=3", "eval.seed=1") != names("eval.limit=3")
    assert sorted(names("eval.seed=1")) == sorted(names())


def test_the_real_file_is_read_and_its_answers_mark_themselves_right() -> None:
    if not DATA.is_file():
        pytest.skip("the data sets are not on this machine")
    made = evaluation("eval=gsm8k", f"eval.path={DATA}", "eval.shots=6")
    questions = made.questions()
    assert len(questions) == 1000
    for question in questions:
        mark = made.mark(question, question.row["answer"])
        assert mark.correct == {"flexible": True, "strict": True}, question
