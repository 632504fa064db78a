"""What a test of accuracy is: questions with what is right, how they are asked, and how answers are marked.

Importable without torch. Knows no engine and no run folder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from engine.build import number
from engine.evals.earlier import EarlierRun, check_against
from engine.workloads.base import WorkItem


@dataclass(frozen=True)
class Question:
    """name: what the data calls it, or its place. item: what the model is asked. expected: what is right, as
    rows show it. row: the question as a row of its data set, which says the same in every run."""

    name: str
    item: WorkItem
    expected: str
    row: Mapping[str, Any]


@dataclass(frozen=True)
class Mark:
    """How one answer did, by score. correct: None where it was not checked. columns: what else its row in
    outputs.jsonl says, such as what was read out of the answer."""

    correct: Mapping[str, bool | None]
    columns: Mapping[str, Any] = field(default_factory=dict)


class Evaluation(ABC):
    """A set of questions. What is wrong with its data is reported at construction, before a model is read."""

    chosen: ClassVar[bool] = True  # False: the option that stands for no evaluation
    scores: ClassVar[tuple[str, ...]] = ("accuracy",)  # ways of marking; the first is the headline
    workers: int = 1  # answers that are marked at a time

    @dataclass(frozen=True)
    class Config:
        """path: a file, a hub id, or "sample". limit: the first so many questions. seed: shuffle before that.
        chat: ask through the model's chat template; else a text to continue. against: what the answers are
        compared with, a run folder or overrides ("spec=none overlap=none"). resume: a run folder whose
        answers are taken over. confidence: of the intervals."""

        path: str | None = None
        limit: int | None = number(None, ge=1)
        seed: int | None = number(None, ge=0)
        chat: bool = True
        against: str | None = None
        resume: str | None = None
        confidence: float = number(0.95, gt=0, lt=1)

    def __init__(self, config: Any) -> None:
        self.config: Evaluation.Config = config
        if self.config.resume:
            EarlierRun.read(self.config.resume, "eval.resume")
        if self.config.against:
            check_against(self.config.against)

    def fetch(self) -> None:
        """Bring what is not on this machine; called once, before a model is read."""
        return None

    @abstractmethod
    def questions(self) -> Sequence[Question]:
        """At least one, in the order in which they are asked."""

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts that end an answer, beside the user's own."""
        return ()

    @abstractmethod
    def mark(self, question: Question, text: str) -> Mark:
        """Judge an answer that came to its end. Called in a thread of its own."""

    def warnings(self) -> Sequence[str]:
        """What a reader of the figures must know about how they came about."""
        return ()
