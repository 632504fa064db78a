"""`task=verify`: the same workload on the slow reference path and on the chosen one, judged token by token.

Importable without torch. Knows no part by name.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.build import choice, number
from engine.params import SamplingParams
from engine.runs import OUTPUTS, WORKLOAD
from engine.tasks.base import (
    EXIT_DIFFERENT,
    EXIT_INTERRUPTED,
    EXIT_OK,
    Outcome,
    Task,
    TaskContext,
    TextEngine,
)
from engine.tasks.compare import Comparison, Verdict, near_ties_per_10000, overall
from engine.tasks.drive import Answer, Job, Watch, run_jobs
from engine.tasks.exercised import exercised, exercised_line
from engine.tasks.generate import record_engine
from engine.tasks.interrupts import StopFlag
from engine.tasks.probe import TOLERANCES, Tolerance
from engine.tasks.progress import RequestProgress
from engine.tasks.reference import REFERENCE, Judge, compare_all, reference_of, same_numbers
from engine.tasks.report import answer_row, one_line
from engine.tasks.requests import load_workload, make_jobs, sampling_params, seeded, warn_of_turns
from engine.workloads.base import WorkItem, Workload


@dataclass(frozen=True)
class Chosen:
    """What the chosen path did, and what the reference has to be given to do the same."""

    jobs: Sequence[Job]
    titles: Sequence[str]
    answers: Sequence[Answer]
    seconds: float
    seed: int
    dtype: str
    exercised: Mapping[str, Any]


class Verify(Task):
    """Passes when every answer is equal up to near-ties; a real difference is exit code 1."""

    judges_outputs = compares_outputs = True

    @dataclass(frozen=True)
    class Config(Task.Config):
        """raw: without the chat template. reference_batch: requests that the reference decodes at a time.
        gap, coin: limits of a near-tie; null: those of the dtype."""

        format: str = choice("text", ("text", "json"))
        raw: bool = False
        reference_batch: int = number(1, ge=1)
        gap: float | None = number(None, ge=0)
        coin: float | None = number(None, ge=0, le=1)

    def __init__(self, config: Config) -> None:
        self._config = config

    def run(self, context: TaskContext) -> Outcome:
        workload, params = load_workload(context), sampling_params(context.config)
        reference = reference_of(context, self._config.reference_batch)
        with StopFlag(context.stderr) as stop:
            chosen = self._chosen(context, workload, params, stop)
            config = same_numbers(reference, chosen.seed, chosen.dtype)
            slow, seconds, found = self._compared(context, config, chosen, stop)
        _write_outputs(context, slow, chosen.answers)
        return self._outcome(found, chosen, seconds, stop.requested)

    def _compared(
        self, context: TaskContext, config: Mapping[str, Any], chosen: Chosen, stop: StopFlag
    ) -> tuple[list[Answer], float, list[Comparison]]:
        """(the reference's answers, seconds for them, how the chosen path's compare); none after a stop,
        whose end another engine would delay."""
        if stop.requested:
            return [], 0.0, []
        engine = context.make_engine(config)
        try:
            batch = self._config.reference_batch
            slow, seconds = _timed(engine, chosen.jobs, stop, context, "reference path", batch)
            judge = Judge(engine, chosen.jobs, self._tolerance(chosen.dtype))
            return slow, seconds, compare_all(slow, chosen.answers, judge)
        finally:
            engine.close()

    def _chosen(
        self, context: TaskContext, workload: Workload, params: SamplingParams, stop: StopFlag
    ) -> Chosen:
        engine = context.make_engine(context.config)
        try:
            record_engine(context, engine)
            items = workload.items(engine.shape.vocab_size)
            warn_of_turns(items, "verify", context)
            context.folder().write_lines(WORKLOAD, (item.as_row() for item in items))
            jobs = seeded(make_jobs(engine, items, params, self._config.raw), engine.seed)
            answers, seconds = _timed(engine, jobs, stop, context, "chosen path", None)
            titles = [item.title() for item in items]
            return Chosen(jobs, titles, answers, seconds, engine.seed, engine.dtype, exercised(engine))
        finally:
            engine.close()

    def _tolerance(self, dtype: str) -> Tolerance:
        own = TOLERANCES[dtype]
        gap, coin = self._config.gap, self._config.coin
        return Tolerance(own.gap if gap is None else gap, own.coin if coin is None else coin)

    def _outcome(
        self, found: Sequence[Comparison], chosen: Chosen, reference_seconds: float, stopped: bool
    ) -> Outcome:
        verdict, tolerance = overall(found), self._tolerance(chosen.dtype)
        result = {
            "task": "verify",
            "verdict": "incomplete" if stopped and verdict is not Verdict.DIFFERENT else verdict.value,
            "interrupted": stopped,
            "answers": len(found),
            "counts": {v.value: sum(c.verdict is v for c in found) for v in Verdict},
            "tokens_compared": sum(c.compared for c in found),
            "near_ties_per_10000": near_ties_per_10000(found),
            "dtype": chosen.dtype,
            "exercised": dict(chosen.exercised),
            "tolerance": {"gap": tolerance.gap, "coin": tolerance.coin},
            "divergences": [c.row() for c in found if c.verdict is not Verdict.PASS],
            "reference": list(REFERENCE),
            "seconds": {"chosen": chosen.seconds, "reference": reference_seconds},
        }
        code = EXIT_DIFFERENT if verdict is Verdict.DIFFERENT else EXIT_OK
        table = verdict_table(found, chosen.titles, result)
        return Outcome(result, table, EXIT_INTERRUPTED if stopped else code)


def verdict_table(found: Sequence[Comparison], titles: Sequence[str], result: Mapping[str, Any]) -> str:
    """One line an answer, then the counts."""
    lines = [f"{'verdict':<10} {'tokens':>6}  {'at':>5} {'distance':>9} {'top gap':>9}  prompt"]
    for c in found:
        close = c.closeness
        where = "" if c.position is None else str(c.position)
        far, gap = ("", "") if close is None else (f"{close.distance:.2e}", f"{close.top_gap:.2e}")
        title = one_line(titles[c.request], 40) + (f"  [{c.note}]" if c.note else "")
        lines.append(f"{c.verdict.value:<10} {c.compared:>6}  {where:>5} {far:>9} {gap:>9}  {title}")
    counts = ", ".join(f"{n} {name}" for name, n in result["counts"].items())
    rate = f"{result['near_ties_per_10000']:.2f} near-ties per 10,000 tokens"
    verdict = f"{result['verdict']}: {counts}; {result['tokens_compared']} tokens, {rate}"
    return "\n".join([*lines, "", exercised_line(result["exercised"]), verdict])


def _timed(
    engine: TextEngine,
    jobs: Sequence[Job],
    stop: StopFlag,
    context: TaskContext,
    what: str,
    concurrency: int | None,
) -> tuple[list[Answer], float]:
    start = time.perf_counter()
    with RequestProgress(context.stderr, len(jobs), what) as progress:
        watch = Watch(on_answer=progress.finished)
        answers = run_jobs(engine, jobs, stop, watch, concurrency=concurrency)
    return answers, time.perf_counter() - start


def _write_outputs(context: TaskContext, slow: Sequence[Answer], fast: Sequence[Answer]) -> None:
    rows = [
        {"path": path, **answer_row(answer, WorkItem(ids=answer.job.ids), answer.job.key)}
        for path, answers in (("reference", slow), ("chosen", fast))
        for answer in answers
    ]
    context.folder().write_lines(OUTPUTS, rows)
