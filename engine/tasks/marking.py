"""Marks answers while others are still being made, and writes each question's row once it is marked.

Importable without torch. Knows no engine; marking runs in threads, since a check may take seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, TextIO

from engine.evals.base import Evaluation, Mark, Question
from engine.evals.earlier import QUESTION_ID, question_id
from engine.runs import json_line

Row = Mapping[str, Any]


class Marking:
    """`with Marking(...) as marking: marking.hand_in(...)`; at the end every row is marked and written."""

    def __init__(
        self, evaluation: Evaluation, questions: Sequence[Question], out: TextIO, path: Mapping[str, str]
    ) -> None:
        """path: what opens every row; empty for the run's own answers."""
        self._evaluation = evaluation
        self._questions = questions
        self._out = out
        self._path = path
        self._pool = ThreadPoolExecutor(evaluation.workers, "mark")
        self._open: dict[Future[Mark], tuple[int, Row]] = {}
        self._right = 0
        self.rows: list[Row] = []

    def hand_in(self, key: int, row: Row, text: str) -> None:
        """An answer to question `key` that came to its end; `row` is what outputs.jsonl says of it so far."""
        self._open[self._pool.submit(self._evaluation.mark, self._questions[key], text)] = (key, row)
        self._collect()

    def note(self) -> str:
        """The share that was right so far; empty where nothing is checked."""
        headline = self._evaluation.scores[0]
        checked = [row for row in self.rows if row["correct"][headline] is not None]
        return f"{self._right / len(checked):.1%} right" if checked else ""

    def _collect(self) -> None:
        for future in [future for future in self._open if future.done()]:
            self._write(*self._open.pop(future), future.result())

    def _write(self, key: int, row: Row, mark: Mark) -> None:
        question = self._questions[key]
        about = {
            "question": question.name,
            QUESTION_ID: question_id(question.row),
            "expected": question.expected,
            "correct": dict(mark.correct),
        }
        whole = {**self._path, **row, **about, **mark.columns}
        self._right += mark.correct[self._evaluation.scores[0]] is True
        self.rows.append(whole)
        self._out.write(json_line(whole))

    def __enter__(self) -> Marking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=kind is None, cancel_futures=kind is not None)
        self._collect()
