"""Stands where no evaluation was chosen. Knows nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from engine.errors import UserError
from engine.evals.base import Evaluation, Question


class NoEvaluation(Evaluation):
    """Has no questions, and says so to whoever asks."""

    chosen = False

    @dataclass(frozen=True)
    class Config:
        """No options."""

    def __init__(self, config: Config) -> None:
        raise UserError("task=eval needs questions: choose eval=gsm8k or eval=humaneval")

    def questions(self) -> Sequence[Question]:
        return ()

    def mark(self, question: Question, text: str) -> NoReturn:
        raise UserError("eval=none marks nothing: choose eval=gsm8k or eval=humaneval")
