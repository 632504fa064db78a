"""`task=train_eagle3` on the tiny model: its task, its run, its files of prompts."""

from __future__ import annotations

import io
import json
from pathlib import Path

from engine.build import make_config, target_class
from engine.compose import compose
from engine.runs import create_run
from engine.tasks.base import Outcome, Task, TaskContext

BASE = ("model=tiny", "model.dtype=float32", "attention=torch", "threads=1", "cache=none", "seed=4")
SMALL = (
    "cache.max_context=512",
    "scheduler.max_running=8",
    "task.prompt_tokens=24",
    "task.document_tokens=24",
    "task.answer_tokens=24",
    "task.self_prompts=0",
    "task.documents=0",
    "task.trainer.draft_vocab=300",
    "task.trainer.batch_tokens=256",
    "task.trainer.log_seconds=0",
    "task.trainer.epochs=12",
)


def task_and_context(folder: Path, *overrides: str) -> tuple[Task, TaskContext]:
    lines = ["task=train_eagle3", *BASE, *SMALL, *overrides]
    chosen = {line.partition("=")[0]: line for line in lines}  # the last one wins
    config = compose(list(chosen.values())).cfg
    context = TaskContext(
        config,
        overrides,
        create_run(folder / "run", config, overrides),
        stdout=io.StringIO(),
        stderr=io.StringIO(),
    )
    cls = target_class(config["task"]["_target_"])
    return cls(make_config(cls, config["task"], "task")), context


def run(folder: Path, *overrides: str) -> tuple[Outcome, TaskContext]:
    task, context = task_and_context(folder, *overrides)
    return task.run(context), context


def prompts(folder: Path, name: str, *lines: str) -> str:
    path = folder / name / "prompts.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"question": line}) + "\n" for line in lines))
    return str(path)
