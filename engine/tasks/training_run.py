"""One training run, stage after stage: write text, answer the exams, train, measure, export.

Importable without torch. Knows the trainer by what it is asked, not by its name.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from engine.errors import UserError
from engine.provenance import device_facts
from engine.tasks.base import TaskContext, TextEngine
from engine.tasks.interrupts import StopFlag
from engine.tasks.published import published
from engine.tasks.training_exams import ExamAnswers, target_facts
from engine.tasks.training_files import (
    PromptFile,
    Sequences,
    load_text,
    save_text,
    set_names,
    unseen,
)
from engine.tasks.training_prompts import TrainingPrompts
from engine.tasks.training_stops import (
    EXAMS,
    MEASURING,
    PROMPTS,
    TEXT,
    TRAINING,
    WRITING,
    Leftovers,
    save_prompts,
    unanswered,
)
from engine.tasks.training_text import Limits, Writer, sequences
from engine.tasks.training_time import WritingTime
from engine.tasks.training_world import TrainingWorld

if TYPE_CHECKING:
    from engine.tasks.train_eagle3 import TrainEagle3

DRAFT = "draft"


class TrainingRun:
    """The stages of one run on a built engine."""

    def __init__(
        self,
        config: TrainEagle3.Config,
        trainer: Any,
        context: TaskContext,
        engine: TextEngine,
        world: TrainingWorld,
        stop: StopFlag,
    ) -> None:
        self._config, self._trainer, self._context = config, trainer, context
        self._engine, self._world, self._stop = engine, world, stop
        limits = Limits(
            config.prompt_tokens, config.document_tokens, config.answer_tokens, config.temperature
        )
        self._time = WritingTime.of(config.generate_minutes)
        seed = (engine.seed + 7919 * world.rank) % (1 << 62)
        self._writer = Writer(engine, context, stop, limits, seed, self._time, self._say)
        self._prompts = TrainingPrompts(config, trainer, self._writer, world, self._say_time)
        self._left = Leftovers(config, context.folder().path, trainer.checkpoint)
        self._stage = WRITING

    def all(self, prompts: Sequence[PromptFile], exams: Sequence[PromptFile]) -> tuple[dict[str, Any], str]:
        """(result.json, text for people)."""
        shape = self._engine.shape
        target = cast(Any, self._engine).target_states(self._trainer.aux_layers(shape))
        self._trainer.draft_layer(shape)  # refuses sizes before any text is written
        texts = self._unseen(self._texts(prompts), exams)
        answers = self._exam_answers(exams)
        if self._stopped():
            return self.left()
        self._stage = TRAINING
        self._engine.forget_prefixes()
        resume = None if self._config.resume is None else Path(self._config.resume).expanduser()
        fitted = self._trainer.fit(
            target,
            texts,
            self._engine.tokenizer.eos_ids,
            folder=self._context.folder().path,
            stopped=lambda: self._stop.requested,
            say=self._say,
            resume=resume,
            rank=self._world.rank,
            size=self._world.size,
        )
        if self._stopped():
            return self.left()
        self._stage = MEASURING
        return self._export(fitted, answers)

    def left(self) -> tuple[dict[str, Any], str]:
        """The same of a run that ends where it is; what it made lies in the folder of the first process."""
        if self._world.rank != 0:
            return {"task": "train_eagle3", "interrupted": True, "complete": False, "stage": self._stage}, ""
        return self._left.result(self._stage), self._left.told(self._stage)

    def _stopped(self) -> bool:
        """Whether any process was asked to stop: all leave a stage together."""
        return any(self._world.gather([self._stop.requested]))

    # --- text -----------------------------------------------------------------------------------------------

    def _texts(self, prompts: Sequence[PromptFile]) -> Sequences:
        """(ids, prompt length) of all processes' text, saved for later runs."""
        if self._config.text:
            return self._earlier()
        mine = self._prompts.share(prompts)
        answers = self._writer.answers(mine, "answers")
        found, stopped = self._world.gather(sequences(answers)), self._stopped()
        if stopped:
            found = [(ids, prompt) for ids, prompt in found if len(ids) - prompt >= 2]
            open_ = [ids for ids in unanswered(mine, answers) if self._writer.fits(ids)]
            self._keep(self._world.gather(open_))
        if self._world.rank == 0 and (found or not stopped):
            save_text(self._context.folder().path / TEXT, found)
        self._say_time(f"{len(found)} answers of {sum(len(ids) - prompt for ids, prompt in found)} tokens")
        if not stopped:
            self._check_answered(found)
        return found

    def _earlier(self) -> Sequences:
        """The text of earlier runs."""
        vocab = self._engine.shape.vocab_size
        kept = [load_text(name, vocab) for name in self._config.text]
        self._prompts.sources["prompts of earlier runs"] = sum(map(len, kept))
        return [sequence for part in kept for sequence in part]

    def _keep(self, prompts: Sequence[list[int]]) -> None:
        """Prompts that were made or read, and are still to be answered."""
        if self._world.rank == 0 and prompts:
            save_prompts(self._context.folder().path / PROMPTS, prompts)

    def _unseen(self, texts: Sequences, exams: Sequence[PromptFile]) -> Sequences:
        """Made-up turns and texts of earlier runs may hold a prompt of task.evaluate."""
        kept = unseen(texts, (ids for _, items in exams for ids in self._writer.items(items)))
        if len(kept) < len(texts):
            left = len(texts) - len(kept)
            self._say(f"text: {left} sequences left out: their prompts are in task.evaluate")
        return kept

    def _check_answered(self, found: Sequences) -> None:
        """UserError where the limit of time left nothing to train on."""
        minutes = self._config.generate_minutes
        if minutes is None or any(len(ids) - prompt >= 2 for ids, prompt in found):
            return
        raise UserError(
            f"task.generate_minutes={minutes} is over and no answer has two tokens: raise it, or ask for "
            "less with a smaller task.self_prompts, task.documents or scheduler.max_running"
        )

    def _exam_answers(self, exams: Sequence[PromptFile]) -> dict[str, Sequences]:
        """Greedy answers by set, kept as they come; only the first process measures."""
        found: dict[str, Sequences] = {}
        if self._world.rank != 0 or not exams:
            return found
        config, folder = self._config, self._context.folder().path
        who = target_facts(self._engine, self._context.config["model"], config.evaluate_tokens)
        kept = ExamAnswers(who, self._engine.shape.vocab_size, config.answers)
        names = set_names([path for path, _ in exams])
        for name, (path, items) in zip(names, exams, strict=True):
            prompts = self._writer.items(items[: config.evaluate_limit])
            ask = partial(self._writer.answers, what=f"answers of {path}", tokens=config.evaluate_tokens)
            found[name] = kept.of(prompts, ask)
            kept.save(folder / EXAMS)
        return found

    # --- result ---------------------------------------------------------------------------------------------

    def _export(self, fitted: Any, answers: Mapping[str, Sequences]) -> tuple[dict[str, Any], str]:
        base = {"task": "train_eagle3", "interrupted": False, "complete": fitted.complete}
        if self._world.rank != 0:
            return base, ""
        folder = self._context.folder().path / DRAFT
        if self._config.output is not None:
            folder = Path(self._config.output).expanduser()
        figures = self._trainer.export(fitted, folder, answers, self._facts(), lambda: self._stop.requested)
        if figures.pop("unmeasured"):
            result = self._left.result(MEASURING, fitted.complete)
            return {**result, "draft": str(folder), "sets": figures["sets"]}, self._left.told(MEASURING)
        result = {**base, "draft": str(folder), **figures, "text": fitted.text, "curve": list(fitted.curve)}
        lines = [
            f"{name}: {found['accept_length']:.3f} tokens a step, accepted by position "
            + " ".join(f"{share:.3f}" for share in found["acceptance_per_position"])
            for name, found in figures["sets"].items()
        ]
        return result, "\n".join([*lines, f"draft: {folder}"])

    def _facts(self) -> dict[str, Any]:
        """For the cards, which are published with the draft."""
        data = "; ".join(f"{count:,} {what}" for what, count in self._prompts.sources.items() if count)
        name = self._config.target_name or self._engine.shape.architecture
        here = (self._context.folder().path.absolute(), Path.cwd())
        command = [published(override, here) for override in self._context.overrides]
        return {
            "target": published(name, here),
            "data": f"greedy answers of the target itself to {data}",
            "command": "python -m engine " + shlex.join(command),
            "hardware": f"{self._world.size} x {device_facts(self._engine.device)['device_name']}",
            "answer_tokens": self._config.answer_tokens,
            "evaluate_tokens": self._config.evaluate_tokens,
        }

    def _say_time(self, what: str) -> None:
        self._say(f"text: {what} after {self._time.passed:.0f} s")

    def _say(self, line: str) -> None:
        if self._world.rank == 0:
            print(line, file=self._context.stderr, flush=True)
