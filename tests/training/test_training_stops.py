"""SIGTERM and Ctrl-C in `task=train_eagle3`: every stage keeps what was done, a later run goes on."""

from __future__ import annotations

import json
import signal
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from training_task import prompts, run

from engine.core import EngineCore
from engine.errors import UserError
from engine.tasks.base import EXIT_INTERRUPTED, Outcome, TaskContext
from engine.tasks.training_exams import ExamAnswers
from engine.tasks.training_files import load_text
from engine.tasks.training_stops import EXAMS, PROMPTS, TEXT
from engine.tasks.training_text import Writer
from speculative.eagle3.training import session
from speculative.eagle3.training.loop import Training
from speculative.eagle3.training.trainer import STATE

Trained = tuple[Path, Outcome, TaskContext]
Signals = dict[int, Sequence[signal.Signals]]
VOCAB = 512


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Callable[[type, str, Signals], None]:
    """Send signals in the middle of the n-th call of a method."""

    def at(owner: Any, name: str, when: Signals) -> None:
        plain, calls = getattr(owner, name), iter(range(1, 1 << 30))

        def method(*args: Any, **options: Any) -> Any:
            for number in when.get(next(calls), ()):
                signal.raise_signal(number)
            return plain(*args, **options)

        monkeypatch.setattr(owner, name, method)

    return at


def drafts_equal(one: Outcome, other: Outcome) -> bool:
    a, b = (load_file(Path(o.result["draft"]) / "model.safetensors") for o in (one, other))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def text_of(outcome: Outcome) -> dict[tuple[int, ...], tuple[int, ...]]:
    """prompt -> what was said."""
    (line,) = (line for line in outcome.result["go_on"] if line.startswith("task.text="))
    kept = load_text(line.removeprefix("task.text=[").removesuffix("]"), VOCAB)
    return {ids[:length]: ids[length:] for ids, length in kept}


def test_stopped_twice_the_weights_are_those_of_one_run(trained: Trained, tmp_path: Path, sent: Any) -> None:
    """By either signal, in the middle of a step: that step is in the checkpoint, and no other is lost."""
    folder, whole, context = trained
    measured = (f"task.evaluate=[{folder / 'exam/prompts.jsonl'}]", "task.evaluate_tokens=16")
    more = [f"task.text=[{context.folder().path / TEXT}]"]
    sent(Training, "_step", {5: [signal.SIGTERM], 9: [signal.SIGINT]})
    for number, steps in ((1, 5), (2, 9)):
        stopped, at = run(tmp_path / str(number), *measured, *more)
        assert (stopped.code, stopped.result["stage"]) == (EXIT_INTERRUPTED, "training")
        state = at.folder().path / STATE
        assert stopped.result["checkpoint"] == str(state)
        assert torch.load(state, weights_only=True)["place"]["step"] == steps
        assert f"checkpoint: {state}" in stopped.text
        assert all(line in stopped.text for line in stopped.result["go_on"])
        assert "stopping at the end of the running step" in at.stderr.getvalue()  # type: ignore[attr-defined]
        more = stopped.result["go_on"]
    done, _ = run(tmp_path / "3", *measured, *more, "task.trainer.compare_vocab=[100]")
    assert (done.code, done.result["complete"]) == (0, True)
    assert drafts_equal(whole, done)
    assert done.result["sets"] == whole.result["sets"]


@pytest.mark.parametrize(("save", "kept"), [("0", 3), ("1e9", None)])
def test_a_second_signal_stops_at_once_and_says_what_there_is(
    trained: Trained, tmp_path: Path, sent: Any, save: str, kept: int | None
) -> None:
    text = trained[2].folder().path / TEXT
    sent(Training, "_step", {4: [signal.SIGINT, signal.SIGINT]})
    stopped, at = run(tmp_path, f"task.text=[{text}]", f"task.trainer.save_seconds={save}")
    state = at.folder().path / STATE
    assert (stopped.code, stopped.result["stage"]) == (EXIT_INTERRUPTED, "training")
    assert state.exists() is (kept is not None)
    if kept is None:
        assert stopped.result["go_on"] == [f"task.text=[{text}]"]
        assert "there is no checkpoint yet" in stopped.text
    else:
        assert torch.load(state, weights_only=True)["place"]["step"] == kept
        assert f"task.resume={at.folder().path}" in stopped.text


def test_a_resumed_run_that_is_stopped_at_once_points_to_the_checkpoint_before(
    trained: Trained, tmp_path: Path, sent: Any
) -> None:
    text = trained[2].folder().path / TEXT
    sent(Training, "_step", {4: [signal.SIGTERM], 5: [signal.SIGINT, signal.SIGINT]})
    first, at = run(tmp_path / "1", f"task.text=[{text}]")
    second, _ = run(tmp_path / "2", *first.result["go_on"])
    assert second.result["go_on"] == first.result["go_on"]
    assert second.result["checkpoint"] == str(at.folder().path / STATE)


LEARN = ("hello", "what is this", "one two three", "go on")


@pytest.mark.parametrize("step", [1, 30, 60])
def test_answers_so_far_are_kept_and_the_other_prompts_too(
    trained: Trained, tmp_path: Path, sent: Any, step: int
) -> None:
    whole = {ids[:n]: ids[n:] for ids, n in load_text(str(trained[2].folder().path / TEXT), VOCAB)}
    learn = f"task.prompts=[{prompts(tmp_path, 'learn', *LEARN)}]"
    sent(EngineCore, "step", {step: [signal.SIGTERM]})
    stopped, at = run(tmp_path / "1", learn, "scheduler.max_running=1", "task.prompt_limit=4")
    assert (stopped.code, stopped.result["stage"]) == (EXIT_INTERRUPTED, "text")
    rest = at.folder().path / PROMPTS
    left = [tuple(json.loads(line)["ids"]) for line in rest.read_text().splitlines()]
    said = text_of(stopped) if step > 1 else {}
    assert sorted([*said, *left]) == sorted(whole)
    assert all(whole[prompt][: len(answer)] == answer for prompt, answer in said.items())
    assert (
        f"task.prompts=[{rest}] task.self_prompts=0 task.documents=0 task.prompt_limit=null" in stopped.text
    )
    assert ("trains on what was written" in stopped.text) is bool(said)
    more, at = run(tmp_path / "2", f"task.prompts=[{rest}]", "task.trainer.epochs=1")
    assert more.code == 0
    found = {ids[:n]: ids[n:] for ids, n in load_text(str(at.folder().path / TEXT), VOCAB)}
    assert found == {prompt: whole[prompt] for prompt in left}


def test_made_up_turns_outlive_a_stop(tmp_path: Path, sent: Any) -> None:
    """At temperature 1 about every third of them ends; those that did are prompts of the next run."""
    exam = f"task.evaluate=[{prompts(tmp_path, 'exam', 'never seen')}]"
    made = ("task.self_prompts=24", "task.prompt_tokens=200", exam)
    sent(Writer, "documents", {1: [signal.SIGTERM]})
    stopped, at = run(tmp_path / "1", *made)
    assert not (at.folder().path / TEXT).exists()
    assert not (at.folder().path / EXAMS).exists(), "nobody was asked yet"
    lines = (at.folder().path / PROMPTS).read_text().splitlines()
    assert len(lines) > 1
    assert "answers the prompts that have no answer yet" in stopped.text
    done, _ = run(tmp_path / "2", f"task.prompts=[{at.folder().path / PROMPTS}]", "task.trainer.epochs=1")
    assert done.result["text"]["sequences"] <= len(lines)
    assert done.result["complete"] is True


class Exams:
    """Two files to measure on, and how many prompts each run asks."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        files = [prompts(folder, name, f"{name} one", f"{name} two") for name in ("a", "b")]
        self.lines = (f"task.evaluate=[{','.join(files)}]", "task.evaluate_tokens=12")
        self.asked: list[int] = []
        plain = Writer.answers

        def answers(writer: Writer, ids: Any, what: str, tokens: int | None = None) -> Any:
            self.asked += [len(ids)] if tokens else []
            return plain(writer, ids, what, tokens)

        monkeypatch.setattr(Writer, "answers", answers)


def test_answers_to_exams_are_taken_over(
    trained: Trained, tmp_path: Path, sent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"task.text=[{trained[2].folder().path / TEXT}]"
    exams = Exams(tmp_path, monkeypatch)
    whole, _ = run(tmp_path / "0", text, *exams.lines)
    steps = Writer.items
    sent(Writer, "items", {4: [signal.SIGTERM]})  # 1 and 2: texts without exam prompts; 3 and 4: the sets
    stopped, at = run(tmp_path / "1", text, *exams.lines)
    assert (stopped.result["stage"], exams.asked) == ("text", [2, 2, 2, 2])
    assert stopped.result["go_on"] == [text, f"task.answers=[{at.folder().path / EXAMS}]"]
    assert f"the same command with {' '.join(stopped.result['go_on'])} goes on" in stopped.text
    monkeypatch.setattr(Writer, "items", steps)
    exams.asked.clear()
    done, _ = run(tmp_path / "2", *exams.lines, *stopped.result["go_on"])
    assert exams.asked == [2], "only the set that had no answers"
    assert done.result["sets"] == whole.result["sets"]


def test_answers_of_another_target_are_refused(trained: Trained, tmp_path: Path) -> None:
    folder, _, context = trained
    kept, exam = context.folder().path / EXAMS, folder / "exam/prompts.jsonl"
    lines = (f"task.text=[{context.folder().path / TEXT}]", f"task.evaluate=[{exam}]")
    with pytest.raises(UserError, match=r"made with other settings \(tokens\): leave it out"):
        run(tmp_path / "1", *lines, "task.evaluate_tokens=15", f"task.answers=[{kept}]")
    with pytest.raises(UserError, match=r"other settings \(model\)"):
        run(tmp_path / "2", *lines, "task.evaluate_tokens=16", "model.seed=1", f"task.answers=[{kept}]")
    with pytest.raises(UserError, match=r"is no exams\.npz of task=train_eagle3"):
        run(tmp_path / "3", *lines, f"task.answers=[{context.folder().path / TEXT}]")
    with pytest.raises(UserError, match=r"task\.answers=nowhere does not exist"):
        run(tmp_path / "4", *lines, "task.answers=[nowhere]")


@pytest.mark.parametrize("who", ["[1]", "3", "null", "{", '"text"'])
def test_an_archive_that_is_no_file_of_answers_is_refused(tmp_path: Path, who: str) -> None:
    path = tmp_path / EXAMS
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("exams.json", who)
    with pytest.raises(UserError, match=r"task\.answers=.* is no exams\.npz of task=train_eagle3"):
        ExamAnswers({}, VOCAB, [str(path)])


def test_a_stop_between_two_measurements_keeps_draft_and_figures(
    trained: Trained, tmp_path: Path, sent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    exams = Exams(tmp_path, monkeypatch)
    lines = (f"task.text=[{trained[2].folder().path / TEXT}]", *exams.lines)
    whole, _ = run(tmp_path / "0", *lines)
    sent(session, "_acceptance", {1: [signal.SIGTERM]})
    stopped, _ = run(tmp_path / "1", *lines)
    result = stopped.result
    assert (stopped.code, result["stage"], result["complete"]) == (EXIT_INTERRUPTED, "evaluation", True)
    assert result["sets"] == {"a": whole.result["sets"]["a"]}
    assert drafts_equal(whole, stopped)
    assert not (Path(result["draft"]) / "card.json").exists()
    done, _ = run(tmp_path / "2", *exams.lines, *result["go_on"])
    assert done.result["sets"] == whole.result["sets"]
    assert drafts_equal(whole, done)
