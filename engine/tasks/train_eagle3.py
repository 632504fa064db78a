"""`task=train_eagle3`: text from the engine itself, a draft trained on it, measured and written.

Importable without torch. Knows the order of these; the trainer is a part that the yaml names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.build import choice, make_config, number, target_class
from engine.errors import UserError
from engine.tasks.base import EXIT_INTERRUPTED, EXIT_OK, Outcome, Task, TaskContext
from engine.tasks.generate import record_engine
from engine.tasks.interrupts import NOTICE, StopFlag
from engine.tasks.training_files import PromptFile, check_apart, read_prompts
from engine.tasks.training_run import TrainingRun
from engine.tasks.training_stops import TEXT
from engine.tasks.training_world import TrainingWorld

ECHO = 5.0  # seconds: torchrun hands a signal on to processes that have it from the terminal already


class TrainEagle3(Task):
    """Prompts from files and from the model itself, greedy answers, training, measurement, export."""

    asks = "task.prompts"

    @dataclass(frozen=True)
    class Config(Task.Config):
        """prompts: files to train on, of each the first prompt_limit. self_prompts: user turns that the model
        makes up; documents: texts that it writes and is then asked about. *_tokens: the longest of each.
        generate_minutes: for writing, of which answers have the larger part. text: text.npz of earlier runs
        instead of all these. answers: exams.npz of earlier runs, whose answers to evaluate are not asked
        again. resume: the folder of a run that stopped. output: where the draft goes, null: the run folder.
        evaluate: files that the draft is measured on, each the first evaluate_limit prompts.
        """

        format: str = choice("text", ("text", "json"))
        prompts: tuple[str, ...] = ()
        prompt_limit: int | None = number(None, ge=1)
        self_prompts: int = number(2048, ge=0)
        openings: str | None = None
        documents: int = number(256, ge=0)
        questions: int = number(3, ge=1)
        temperature: float = number(1.0, gt=0, le=10)
        prompt_tokens: int = number(192, ge=1)
        document_tokens: int = number(512, ge=1)
        answer_tokens: int = number(320, ge=2)
        generate_minutes: float | None = number(None, gt=0)
        text: tuple[str, ...] = ()
        answers: tuple[str, ...] = ()
        resume: str | None = None
        output: str | None = None
        evaluate: tuple[str, ...] = ()
        evaluate_limit: int = number(80, ge=1)
        evaluate_tokens: int = number(256, ge=2)
        target_name: str | None = None

    def __init__(self, config: Config) -> None:
        self._config = config

    def run(self, context: TaskContext) -> Outcome:
        config = self._config
        trainer = _trainer(context.config["task"]["trainer"])
        prompts = read_prompts(config.prompts, "task.prompts")
        exams = read_prompts(config.evaluate, "task.evaluate")
        check_apart(prompts, exams)
        self._check(trainer.checkpoint)
        world = TrainingWorld.of(os.environ)
        with StopFlag(context.stderr, NOTICE, ECHO if world.size > 1 else 0.0) as stop:
            result, text = self._all(context, trainer, prompts, exams, world, stop)
        return Outcome(result, text, EXIT_INTERRUPTED if result["interrupted"] else EXIT_OK)

    def _all(
        self,
        context: TaskContext,
        trainer: Any,
        prompts: Sequence[PromptFile],
        exams: Sequence[PromptFile],
        world: TrainingWorld,
        stop: StopFlag,
    ) -> tuple[dict[str, Any], str]:
        """(result.json, text for people), also where a second signal ends it at once."""
        runs: list[TrainingRun] = []
        try:
            with world:
                engine = context.make_engine(world.placed(context.config))
                try:
                    record_engine(context, engine)
                    runs.append(TrainingRun(self._config, trainer, context, engine, world, stop))
                    return runs[0].all(prompts, exams)
                finally:
                    engine.close()
        except KeyboardInterrupt:
            if not runs:
                raise
            return runs[0].left()

    def _check(self, checkpoint: str) -> None:
        """What can be refused before a weight is read. checkpoint: the file that a stopped run leaves."""
        config = self._config
        _check_exist("task.text", config.text)
        _check_exist("task.answers", config.answers)
        if config.resume is not None:
            _check_resume(config.resume, checkpoint, config.text)
        if not (config.prompts or config.self_prompts or config.documents or config.text):
            raise UserError(
                "nothing to train on: give task.prompts=[FILE], task.self_prompts=N or task.text=FILE"
            )
        if config.output is not None:
            _make_folder(config.output)


def _check_exist(option: str, names: Sequence[str]) -> None:
    for name in names:
        if not Path(name).expanduser().exists():
            raise UserError(f"{option}={name} does not exist")


def _check_resume(resume: str, checkpoint: str, text: Sequence[str]) -> None:
    """A folder or a file of a run that was stopped while it trained, together with that run's text."""
    _check_exist("task.resume", [resume])
    folder = Path(resume).expanduser()
    if folder.is_dir() and not (folder / checkpoint).is_file():
        raise UserError(
            f"task.resume={resume} holds no {checkpoint}: give the folder of a run that was stopped "
            "while it trained, or leave task.resume out"
        )
    if not text:
        raise UserError(
            f"task.resume={resume} goes on in the text of that run: give it too, "
            f"task.text=[{Path(resume) / TEXT}]"
        )


def _make_folder(output: str) -> None:
    """Before the training, not after it."""
    folder = Path(output).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"task.output={output} cannot be made: {error.strerror or error}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"task.output={output} cannot be written to: choose another folder")


def _trainer(node: Mapping[str, Any]) -> Any:
    cls = target_class(node["_target_"])
    return cls(make_config(cls, node, "task.trainer"))
