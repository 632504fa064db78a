"""What a training cannot begin with is refused in a sentence, before any work."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_task import prompts, run, task_and_context

from engine.errors import UserError
from engine.tasks.training_files import read_openings, read_prompts


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "nothing to train on"),
        (["task.prompts=[nowhere.txt]"], "task.prompts: there is no file nowhere.txt"),
        (["task.text=[nowhere.npz]"], "task.text=nowhere.npz does not exist"),
        (["task.self_prompts=1", "task.resume=nowhere"], "task.resume=nowhere does not exist"),
        (["task.self_prompts=1", "task.openings=nowhere"], "task.openings: there is no file nowhere"),
        (
            ["task.self_prompts=1", "task.trainer.export_vocab=301"],
            "task.trainer.export_vocab=301 is not among",
        ),
        (
            ["task.self_prompts=1", "task.trainer.compare_vocab=[1]"],
            "task.trainer.compare_vocab=1 is not among",
        ),
        (["task.self_prompts=1", "task.trainer.draft_vocab=513"], "exceeds the target's vocabulary of 512"),
        (["task.self_prompts=1", "task.trainer.aux_layers=[2,1]"], "ascending layers between 1 and 3"),
        (["task.self_prompts=1", "task.trainer.aux_layers=[0,4]"], "ascending layers between 1 and 3"),
        (["task.self_prompts=1", "task.trainer.heads=6", "task.trainer.kv_heads=4"], "no multiple"),
        (["task.self_prompts=1", "model.layers=2"], "the target has 2 layers"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(
    tmp_path: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message.replace("[", r"\[").replace("]", r"\]")):
        run(tmp_path, *overrides)


def test_exam_prompts_must_not_be_trained_on(tmp_path: Path) -> None:
    learn = prompts(tmp_path, "learn", "one", "two")
    exam = prompts(tmp_path, "exam", "three", "two")
    with pytest.raises(UserError, match=r"1 prompts of .* are in task\.prompts too"):
        run(tmp_path, f"task.prompts=[{learn}]", f"task.evaluate=[{exam}]")


@pytest.mark.parametrize("shared", [" two\t ", "two\n"])
def test_spaces_make_no_other_prompt(tmp_path: Path, shared: str) -> None:
    learn = prompts(tmp_path, "learn", "one", "two")
    exam = prompts(tmp_path, "exam", "three", shared)
    with pytest.raises(UserError, match=r"1 prompts of .* are in task\.prompts too"):
        run(tmp_path, f"task.prompts=[{learn}]", f"task.evaluate=[{exam}]")


def test_a_file_without_prompts_is_named_by_its_option(tmp_path: Path) -> None:
    for name in ("empty.txt", "empty.jsonl"):
        (tmp_path / name).write_text("\n \n")
        with pytest.raises(UserError, match=rf"task\.evaluate=.*{name} holds no prompts"):
            read_prompts([str(tmp_path / name)], "task.evaluate")


def test_openings_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "openings.txt"
    path.write_bytes(b"Write \xff")
    with pytest.raises(UserError, match=r"task\.openings: .*is not UTF-8 text \(byte 6\)"):
        read_openings(str(path))


def test_a_folder_without_a_checkpoint_is_refused_before_any_text_is_written(tmp_path: Path) -> None:
    task, context = task_and_context(tmp_path / "run", "task.self_prompts=9", f"task.resume={tmp_path}")
    with pytest.raises(UserError, match=r"task\.resume=.* holds no training_state\.pt"):
        task.run(context)


def test_a_resumed_run_needs_its_own_text(tmp_path: Path) -> None:
    """New text would not be what the place in the old one was about."""
    (tmp_path / "training_state.pt").touch()
    task, context = task_and_context(tmp_path / "run", "task.self_prompts=9", f"task.resume={tmp_path}")
    with pytest.raises(UserError, match=r"goes on in the text of that run: give it too, task\.text="):
        task.run(context)


def test_an_output_that_cannot_be_made_is_refused_before_the_training(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    task, context = task_and_context(tmp_path / "run", "task.self_prompts=9", f"task.output={file}/draft")
    with pytest.raises(UserError, match=r"task\.output=.* cannot be made: Not a directory"):
        task.run(context)
