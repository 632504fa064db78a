"""A limit of time for writing: every stage has its share, answers the larger part, whatever the speed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from training_parts import engine
from training_task import run, task_and_context

from engine.errors import UserError
from engine.tasks import training_run
from engine.tasks.base import EXIT_INTERRUPTED, TaskContext
from engine.tasks.interrupts import StopFlag
from engine.tasks.training_files import load_text
from engine.tasks.training_text import Limits, Writer
from engine.tasks.training_time import ANSWERS, DOCUMENTS, ENDS, REQUESTS, TURNS, WritingTime

TICKS = 1500  # of a made-up clock that goes on by one whenever it is asked: about once a step
LONG = (
    "task.self_prompts=5000",
    "task.documents=5000",
    "task.prompt_tokens=200",
    "task.document_tokens=400",
    "task.answer_tokens=200",
    "task.questions=60",
    "task.generate_minutes=1",
    "task.trainer.epochs=1",
    "task.trainer.minutes=0.001",
    "scheduler.max_running=16",
)


def ticking(seconds: float) -> WritingTime:
    ticks = iter(range(10**9))
    return WritingTime(0, seconds, lambda: next(ticks))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> WritingTime:
    made = ticking(TICKS)
    monkeypatch.setattr(training_run.WritingTime, "of", lambda minutes: made)
    return made


def said(context: TaskContext) -> str:
    return str(context.stderr.getvalue())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("passed", "over"),
    [
        (0, []),
        (19.9, []),
        (20, [TURNS]),
        (30, [TURNS, REQUESTS]),
        (40, [TURNS, REQUESTS, DOCUMENTS]),
        (99.9, [TURNS, REQUESTS, DOCUMENTS]),
        (100, [TURNS, REQUESTS, DOCUMENTS, ANSWERS]),
    ],
)
def test_when_stages_are_over(passed: float, over: list[str]) -> None:
    time = WritingTime(7.0, 100.0, lambda: 7.0 + passed)
    assert [stage for stage in ENDS if time.over(stage)] == over
    assert not any(WritingTime(7.0, None, time.clock).over(stage) for stage in ENDS)


def test_minutes_count_from_now() -> None:
    time = WritingTime.of(2.0, lambda: 5.0)
    assert (time.began, time.seconds) == (5.0, 120.0)
    assert WritingTime.of(None).seconds is None


def test_every_stage_has_its_share(tmp_path: Path, clock: WritingTime) -> None:
    outcome, context = run(tmp_path, *LONG)
    assert outcome.code == 0
    ends = {
        what: int(after)
        for what, after in re.findall(r"text: \d+ ([a-z ]+?)(?: of \d+ tokens)? after (\d+) s", said(context))
    }
    assert list(ends) == ["user turns", "documents", "answers"]
    slack = 12  # steps until what was cancelled is out, and lines
    assert 0.2 * TICKS <= ends["user turns"] <= 0.2 * TICKS + slack
    assert 0.4 * TICKS <= ends["documents"] <= 0.4 * TICKS + 2 * slack
    assert TICKS <= ends["answers"] <= TICKS + 4 * slack
    assert re.findall(r"the time for ([a-z ]+) is over", said(context)) == [
        "user turns",
        "document requests",
        "documents",
        "answers",
    ]
    assert all(int(count) > 0 for count in re.findall(r"text: (\d+) [a-z]", said(context)))
    data = (Path(outcome.result["draft"]) / "README.md").read_text()
    assert "user turns that the target made up" in data
    assert "questions about texts that the target wrote" in data


def test_what_a_stage_leaves_goes_to_the_next(tmp_path: Path, clock: WritingTime) -> None:
    _, context = run(tmp_path, *LONG, "task.self_prompts=0", "task.questions=1")
    ended = re.search(r"0 user turns after (\d+) s", said(context))
    assert ended is not None
    assert int(ended[1]) < 10
    cut = re.search(r"\d+ documents after (\d+) s", said(context))
    assert cut is not None
    assert int(cut[1]) >= 0.4 * TICKS


def test_a_limit_cuts_answers_and_keeps_their_part(tmp_path: Path) -> None:
    _, context = task_and_context(tmp_path)
    lines: list[str] = []
    writer = Writer(
        engine(), context, StopFlag(context.stderr), Limits(8, 8, 64, 1.0), 3, ticking(20), lines.append
    )
    answers = writer.answers([[1, 2, 3]] * 30, "answers")
    cut = [answer for answer in answers if answer.cut]
    assert 0 < len(cut) <= len(answers) < 30, "what waited is left out"
    assert all(0 < answer.tokens < 64 for answer in cut)
    whole = len(answers) - len(cut)
    assert lines == [
        f"text: the time for answers is over: {whole} of 30 ended, {len(cut)} were cut short, "
        f"{30 - len(answers)} not begun"
    ]
    assert len(writer.answers([[1, 2, 3]] * 4, "an exam", 5)) == 4, "exams are limited in size, not in time"
    assert len(lines) == 1


def test_no_time_for_answers_names_the_limit(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"task\.generate_minutes=1e-06 is over and no answer has two tokens"):
        run(tmp_path, *LONG, "task.generate_minutes=0.000001")


def test_ctrl_c_while_answers_are_written_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def requested(flag: StopFlag) -> bool:
        asked.append(True)
        return len(asked) > 60

    monkeypatch.setattr(StopFlag, "requested", property(requested, lambda flag, value: None), raising=False)
    path = tmp_path / "learn.txt"
    path.write_text("".join(f"line {i}\n" for i in range(200)))
    outcome, _ = run(tmp_path, f"task.prompts=[{path}]")
    assert outcome.code == EXIT_INTERRUPTED
    assert outcome.result["stage"] == "text"
    text = tmp_path / "run" / "text.npz"
    assert f"task.text=[{text}] trains on what was written" in outcome.text
    assert any(len(ids) - prompt > 2 for ids, prompt in load_text(str(text), 512))
