"""Asks one configuration the questions of an evaluation, and keeps what an earlier run has answered.

Importable without torch. Knows how questions become requests; not what their answers are compared with.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

from engine.errors import UserError
from engine.evals.base import Evaluation, Question
from engine.evals.earlier import question_id
from engine.metrics import difference, rates
from engine.params import SamplingParams
from engine.tasks.base import TaskContext, TextEngine
from engine.tasks.drive import Answer, Job, Watch, run_jobs
from engine.tasks.generate import record_engine
from engine.tasks.interrupts import StopFlag
from engine.tasks.marking import Marking
from engine.tasks.progress import RequestProgress
from engine.tasks.report import answer_row
from engine.tasks.requests import make_jobs, seeded

Row = Mapping[str, Any]
OWN: Mapping[str, str] = {}
OTHER: Mapping[str, str] = {"path": "against"}  # opens the rows of what is compared with


@dataclass(frozen=True)
class Examined:
    """rows: a marked answer each. answers: those that were made now. facts: of the engine, for the result."""

    rows: Sequence[Row]
    answers: Sequence[Answer] = ()
    seconds: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Examiner:
    """concurrency: questions in flight. out: where the rows go."""

    context: TaskContext
    params: SamplingParams
    concurrency: int | None
    stop: StopFlag
    out: TextIO

    def __call__(
        self,
        config: Mapping[str, Any],
        evaluation: Evaluation,
        questions: Sequence[Question],
        path: Mapping[str, str] = OWN,
        known: Mapping[str, Row] | None = None,
    ) -> Examined:
        """Ask what is not in `known` (rows by question id). path: OWN or OTHER."""
        with Marking(evaluation, questions, self.out, path) as marking:
            missing = _take_over(questions, known or {}, marking)
            made = self._ask(config, evaluation, questions, missing, marking, record=not path)
        return replace(made, rows=sorted(marking.rows, key=lambda row: int(row["index"])))

    def _ask(
        self,
        config: Mapping[str, Any],
        evaluation: Evaluation,
        questions: Sequence[Question],
        missing: Sequence[int],
        marking: Marking,
        *,
        record: bool,
    ) -> Examined:
        if not missing or self.stop.requested:
            return Examined(())
        engine = self.context.make_engine(config)
        try:
            if record:
                record_engine(self.context, engine)
            jobs = self._jobs(engine, evaluation, questions, missing)
            return self._run(engine, questions, jobs, marking, "questions" if record else "compared with")
        finally:
            engine.close()

    def _jobs(
        self,
        engine: TextEngine,
        evaluation: Evaluation,
        questions: Sequence[Question],
        missing: Sequence[int],
    ) -> list[Job]:
        if evaluation.config.chat and not engine.tokenizer.chat_template:
            raise UserError(
                "eval.chat=true needs a chat template, and this model has none: use eval.chat=false"
            )
        items = [question.item for question in questions]
        params = replace(self.params, stop=(*self.params.stop, *evaluation.stop))
        jobs = seeded(make_jobs(engine, items, params, not evaluation.config.chat), engine.seed)
        return [jobs[place] for place in missing]

    def _run(
        self,
        engine: TextEngine,
        questions: Sequence[Question],
        jobs: Sequence[Job],
        marking: Marking,
        what: str,
    ) -> Examined:
        before, start = engine.metrics.snapshot(), time.perf_counter()
        with RequestProgress(self.context.stderr, len(jobs), what, marking.note) as progress:

            def on_answer(answer: Answer) -> None:
                key = answer.job.key
                if not answer.cut:
                    marking.hand_in(key, answer_row(answer, questions[key].item, key), answer.output.text)
                progress.finished(answer)

            watch = Watch(on_answer=on_answer)
            answers = run_jobs(engine, jobs, self.stop, watch, concurrency=self.concurrency)
        seconds = time.perf_counter() - start
        counts = difference(before, engine.metrics.snapshot())
        facts = {
            "seed": engine.seed,
            "model": engine.shape.architecture,
            "device": engine.device,
            "dtype": engine.dtype,
            "metrics": counts,
            "rates": rates(counts),
        }
        return Examined((), answers, seconds, facts)


def _take_over(questions: Sequence[Question], known: Mapping[str, Row], marking: Marking) -> list[int]:
    """Hand in what was answered before, marked anew; the places of what was not."""
    missing = []
    for place, question in enumerate(questions):
        row = known.get(question_id(question.row))
        if row is None:
            missing.append(place)
        else:
            marking.hand_in(place, {**row, "index": place}, row["completions"][0]["text"])
    return missing
