"""`task=train_eagle3` from the command line's config to the written draft, on the tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from training_task import prompts, run

from engine.tasks.base import EXIT_INTERRUPTED, Outcome, TaskContext
from engine.tasks.interrupts import StopFlag


def test_it_trains_measures_and_writes(trained: tuple[Path, Outcome, TaskContext]) -> None:
    _, outcome, context = trained
    result = outcome.result
    assert outcome.code == 0
    assert result["complete"] is True
    losses = [point["loss"] for point in result["curve"]]
    assert losses[-1] < losses[0]
    assert 1 <= result["sets"]["exam"]["accept_length"] <= 5
    assert set(result["by_vocab"]) == {"100", "300"}
    draft = context.folder().path / "draft"
    assert str(draft) == result["draft"]
    tensors = load_file(draft / "model.safetensors")
    assert tensors["lm_head.weight"].shape == (300, 64)
    assert tensors["fc.weight"].dtype == torch.bfloat16
    assert (draft / "model.safetensors").stat().st_mode & 0o044 == 0o044
    said = (context.stderr.getvalue(), context.stdout.getvalue())  # type: ignore[attr-defined]
    assert "accepted" in said[0]
    assert said[1] == ""


def test_the_cards_say_where_it_comes_from(trained: tuple[Path, Outcome, TaskContext]) -> None:
    _, outcome, _ = trained
    folder = Path(outcome.result["draft"])
    card = json.loads((folder / "card.json").read_text())
    assert card["target"] == {"name": "Tiny", "hidden_size": 64, "num_layers": 3, "vocab_size": 512}
    assert card["accept_length"] == {"exam": outcome.result["sets"]["exam"]["accept_length"]}
    assert len(card["acceptance_per_position"]["exam"]) == card["chain_drafts"] == 4
    assert "learn/prompts.jsonl" in card["data"]
    assert "task.evaluate_tokens=16" in card["command"]
    text = (folder / "README.md").read_text()
    assert "# EAGLE3 draft for Tiny" in text
    assert "| exam | " in text


def test_text_of_an_earlier_run_is_used_again(
    trained: tuple[Path, Outcome, TaskContext], tmp_path: Path
) -> None:
    _, outcome, context = trained
    text = context.folder().path / "text.npz"
    again, _ = run(tmp_path, f"task.text=[{text},{text}]", "task.trainer.epochs=1")
    assert again.result["text"]["sequences"] == 2 * outcome.result["text"]["sequences"] == 8
    assert not (tmp_path / "run/text.npz").exists()
    assert not (tmp_path / "run/draft/card.json").exists(), "a card without a measurement promises nothing"


def test_ctrl_c_in_training_leaves_a_checkpoint_to_go_on_from(
    trained: tuple[Path, Outcome, TaskContext], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, whole, context = trained
    text = context.folder().path / "text.npz"
    asked: list[bool] = []
    monkeypatch.setattr(StopFlag, "requested", property(_after(asked, 8), _ignore), raising=False)
    stopped, _ = run(tmp_path, f"task.text=[{text}]")
    assert stopped.code == EXIT_INTERRUPTED
    assert stopped.result["stage"] == "training"
    assert f"task.resume={tmp_path / 'run'}" in stopped.text
    monkeypatch.undo()
    resumed, _ = run(tmp_path / "2", f"task.text=[{text}]", f"task.resume={tmp_path / 'run'}")
    assert resumed.result["complete"] is True
    first, second = (load_file(Path(o.result["draft"]) / "model.safetensors") for o in (whole, resumed))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def _ignore(self: StopFlag, value: bool) -> None:
    """The flag's own constructor sets it; the property decides."""
    return None


def _after(asked: list[bool], count: int) -> Any:
    def requested(self: StopFlag) -> bool:
        asked.append(True)
        return len(asked) > count

    return requested


def test_exam_prompts_in_the_text_of_an_earlier_run_are_left_out_and_told(
    trained: tuple[Path, Outcome, TaskContext], tmp_path: Path
) -> None:
    text = trained[2].folder().path / "text.npz"
    exam = prompts(tmp_path, "exam", "go on", "never seen")
    outcome, context = run(
        tmp_path,
        f"task.text=[{text}]",
        f"task.evaluate=[{exam}]",
        "task.evaluate_tokens=4",
        "task.trainer.epochs=1",
    )
    assert outcome.result["text"]["sequences"] == 3
    said = context.stderr.getvalue()  # type: ignore[attr-defined]
    assert "text: 1 sequences left out: their prompts are in task.evaluate" in said
