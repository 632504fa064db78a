"""What a training run that was stopped has left, and the overrides with which it goes on.

Importable without torch. Knows files and options; runs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.tasks.drive import Answer

if TYPE_CHECKING:
    from engine.tasks.train_eagle3 import TrainEagle3

TEXT, PROMPTS, EXAMS = "text.npz", "prompts.jsonl", "exams.npz"  # files of a run folder
WRITING, TRAINING, MEASURING = "text", "training", "evaluation"  # stages
Ids = Sequence[int]


@dataclass(frozen=True)
class Leftovers:
    """folder: of the run. checkpoint: the name of the trainer's file."""

    config: TrainEagle3.Config
    folder: Path
    checkpoint: str

    def result(self, stage: str, complete: bool = False) -> dict[str, Any]:
        """result.json of a run that was stopped. go_on: overrides to run the same command with."""
        state = self._checkpoint()
        return {
            "task": "train_eagle3",
            "interrupted": True,
            "complete": complete,
            "stage": stage,
            "checkpoint": None if state is None else str(state),
            "go_on": self._go_on(),
        }

    def told(self, stage: str) -> str:
        """For a person: what is kept, and where."""
        state, options = self._checkpoint(), " ".join(self._go_on())
        if stage == WRITING:
            again = [f"the same command with {options} goes on"] if self.config.text else self._kept_text()
            return "\n".join(["interrupted before training began", *again])
        doing = "the draft was measured" if stage == MEASURING else "it trained"
        if state is None:
            return f"stopped while {doing}; there is no checkpoint yet: begin it again with {options}"
        return f"stopped while {doing}; checkpoint: {state}\nthe same command with {options} goes on"

    def _kept_text(self) -> list[str]:
        config, lines = self.config, []
        if (self.folder / TEXT).is_file():
            lines.append(f"{self._text()} trains on what was written")
        if (self.folder / PROMPTS).is_file():
            limit = [] if config.prompt_limit is None else ["task.prompt_limit=null"]
            asked = [f"task.prompts=[{self.folder / PROMPTS}]", "task.self_prompts=0", "task.documents=0"]
            lines.append(f"{' '.join([*asked, *limit])} answers the prompts that have no answer yet")
        if (self.folder / EXAMS).is_file():
            lines.append(f"{self._exams()} takes the answers to task.evaluate over")
        return lines

    def _go_on(self) -> list[str]:
        state = self._checkpoint()
        text = [self._text()] if self.config.text or (self.folder / TEXT).is_file() else []
        exams = [self._exams()] if self.config.answers or (self.folder / EXAMS).is_file() else []
        resume = [] if state is None else [f"task.resume={self._resumed(state)}"]
        return [*text, *exams, *resume]

    def _text(self) -> str:
        return f"task.text=[{','.join(self.config.text) or self.folder / TEXT}]"

    def _exams(self) -> str:
        """The run's own file holds what it has taken over, too."""
        own = self.folder / EXAMS
        return f"task.answers=[{own if own.is_file() else ','.join(self.config.answers)}]"

    def _checkpoint(self) -> Path | None:
        """The run's own, or the one that it went on from."""
        own = self.folder / self.checkpoint
        if own.is_file():
            return own
        if self.config.resume is None:
            return None
        earlier = Path(self.config.resume).expanduser()
        return earlier / self.checkpoint if earlier.is_dir() else earlier

    def _resumed(self, state: Path) -> Path:
        return state.parent if state.name == self.checkpoint else state


def unanswered(prompts: Sequence[Ids], answers: Sequence[Answer]) -> list[list[int]]:
    """The prompts to which nothing was said that could be learnt from."""
    said = {answer.job.key for answer in answers if not answer.cut or answer.tokens >= 2}
    return [list(ids) for number, ids in enumerate(prompts) if number not in said]


def save_prompts(path: Path, prompts: Sequence[Ids]) -> None:
    """As rows that task.prompts reads."""
    path.write_text("".join(json.dumps({"ids": list(ids)}) + "\n" for ids in prompts), encoding="utf-8")
