"""One small training for all tests of what a training leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_task import prompts, run

from engine.tasks.base import Outcome, TaskContext


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome, TaskContext]:
    folder = tmp_path_factory.mktemp("trained")
    learn = prompts(folder, "learn", "hello", "what is this", "one two three", "go on")
    exam = prompts(folder, "exam", "never seen", "nor this")
    outcome, context = run(
        folder,
        f"task.prompts=[{learn}]",
        f"task.evaluate=[{exam}]",
        "task.evaluate_tokens=16",
        "task.trainer.compare_vocab=[100]",
        "task.target_name=Tiny",
    )
    return folder, outcome, context
