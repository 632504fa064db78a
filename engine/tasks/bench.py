"""`task=bench`: offline throughput and latency of one configuration, measured so that it does not mislead.

Importable without torch. Knows no loop; every count comes from token ids and counter differences.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.build import choice, number
from engine.errors import UserError
from engine.graphs.cost import cost_rows
from engine.metrics import difference
from engine.params import SamplingParams
from engine.runs import OUTPUTS, WORKLOAD
from engine.tasks.base import EXIT_INTERRUPTED, EXIT_OK, Outcome, Task, TaskContext, TextEngine
from engine.tasks.bench_report import Goal, Measured, bench_table, medians, warnings_of
from engine.tasks.bench_spec import compared, spec_result, spec_warnings
from engine.tasks.dialogues import Dialogues
from engine.tasks.drive import Job, Watch, run_jobs
from engine.tasks.generate import record_engine
from engine.tasks.interrupts import StopFlag
from engine.tasks.memory_use import peak_memory_bytes
from engine.tasks.progress import RequestProgress
from engine.tasks.report import answer_row
from engine.tasks.requests import load_workload, make_jobs, sampling_params
from engine.workloads.base import WorkItem, Workload

PLAIN = ("spec=none",)


@dataclass(frozen=True)
class Benched:
    """An engine that was measured, and closed since."""

    engine: TextEngine
    items: Sequence[WorkItem]
    runs: Sequence[Measured]


class Bench(Task):
    """Warm-up, then `repeats` runs over the same requests; every figure is the median over the repeats."""

    main_figure = "output_tokens_per_s"

    @dataclass(frozen=True)
    class Config(Task.Config):
        """warmup: runs that are not counted. concurrency: requests in flight, null: all of them. raw: without
        the chat template. ignore_eos: every answer has max_tokens tokens; off, since text past its end
        flatters drafters. reference: with drafts, plain decoding is measured too. keep_cache: runs find the
        prefixes that the runs before left; off, since repeats would otherwise measure no prefill.
        ttft_limit_ms, tpot_limit_ms: what a request may take to count for the goodput."""

        format: str = choice("text", ("text", "json"))
        warmup: int = number(1, ge=0)
        repeats: int = number(3, ge=1)
        concurrency: int | None = number(None, ge=1)
        ignore_eos: bool = False
        reference: bool = True
        keep_cache: bool = False
        ttft_limit_ms: float | None = number(None, gt=0)
        tpot_limit_ms: float | None = number(None, gt=0)
        raw: bool = False

    def __init__(self, config: Config) -> None:
        self._config = config

    def run(self, context: TaskContext) -> Outcome:
        workload = load_workload(context)
        params = sampling_params(context.config)
        if self._config.ignore_eos:
            params = replace(params, ignore_eos=True)
        if params.ignore_eos and params.max_tokens is None:
            raise UserError(
                "task.ignore_eos=true with sampling.max_tokens=null would fill the context: set one"
            )
        plain = plain_config(context) if self._config.reference else None
        with StopFlag(context.stderr) as stop:
            bench = self._bench(context, context.config, workload, params, stop, record=True)
            against = None
            if plain is not None and bench.runs and not stop.requested:
                against = self._bench(context, plain, workload, params, stop, record=False)
            stopped = stop.requested
        if bench.runs:
            rows = (
                answer_row(a, bench.items[a.job.key], a.job.key, a.job.turn) for a in bench.runs[-1].answers
            )
            context.folder().write_lines(OUTPUTS, rows)
        result = self._result(context, bench, against, workload, stopped)
        text = bench_table(result) if bench.runs and self._config.format == "text" else ""
        if not text:  # the table has the warnings in it
            for line in result["warnings"]:
                print(f"warning: {line}", file=context.stderr)
        return Outcome(result, text, EXIT_INTERRUPTED if stopped else EXIT_OK)

    def _bench(
        self,
        context: TaskContext,
        config: Mapping[str, Any],
        workload: Workload,
        params: SamplingParams,
        stop: StopFlag,
        *,
        record: bool,
    ) -> Benched:
        """Build, warm up, measure, close. record: this is the run that the folder is about."""
        engine = context.make_engine(config)
        try:
            items = workload.items(engine.shape.vocab_size)
            if record:
                record_engine(context, engine)
                context.folder().write_lines(WORKLOAD, (item.as_row() for item in items))
            engine.metrics.stages.on = True
            jobs = make_jobs(engine, items, params, self._config.raw)
            what = "bench" if record else "plain decoding"
            return Benched(engine, items, self._measure(context, engine, items, jobs, stop, what))
        finally:
            engine.close()

    def _measure(
        self,
        context: TaskContext,
        engine: TextEngine,
        items: Sequence[WorkItem],
        jobs: Sequence[Job],
        stop: StopFlag,
        what: str,
    ) -> list[Measured]:
        runs: list[Measured] = []
        for number_ in range(self._config.warmup + self._config.repeats):
            if not self._config.keep_cache:
                engine.forget_prefixes()
            talk = Dialogues(engine, items, context.stderr)
            run = _one_run(engine, talk, jobs, stop, self._config.concurrency, context, what)
            if stop.requested:
                break
            if number_ >= self._config.warmup:
                runs.append(run)
        return runs

    def _result(
        self, context: TaskContext, bench: Benched, against: Benched | None, workload: Workload, stopped: bool
    ) -> dict[str, Any]:
        engine, runs = bench.engine, bench.runs
        figures = medians(runs, Goal(self._config.ttft_limit_ms, self._config.tpot_limit_ms))
        drafted = sum(run.counts["drafted_tokens"] for run in runs)
        warnings = warnings_of(context.config, workload, runs, self._config.ignore_eos)
        return {
            "task": "bench",
            "interrupted": stopped,
            **figures,
            "spec": spec_result(engine, [run.spec for run in runs], [run.counts for run in runs]),
            **compared(figures, None if against is None else medians(against.runs)),
            "captures": cost_rows(engine.metrics.captures),
            "peak_memory_bytes": peak_memory_bytes(engine.device),
            "requests": len(runs[-1].answers) if runs else 0,
            "concurrency": self._config.concurrency,
            "warmup": self._config.warmup,
            "repeats": len(runs),
            "ignore_eos": self._config.ignore_eos,
            "seed": engine.seed,
            "model": engine.shape.architecture,
            "device": engine.device,
            "dtype": engine.dtype,
            "representative": workload.representative,
            "warnings": [*warnings, *spec_warnings(engine, drafted, self._config.raw)],
        }


def plain_config(context: TaskContext) -> dict[str, Any] | None:
    """The same configuration without drafts; None where it has none already."""
    plain = context.compose(PLAIN)
    return None if context.config["spec"] == plain["spec"] else {**context.config, "spec": plain["spec"]}


def _one_run(
    engine: TextEngine,
    talk: Dialogues,
    jobs: Sequence[Job],
    stop: StopFlag,
    concurrency: int | None,
    context: TaskContext,
    what: str,
) -> Measured:
    """All jobs once. Counters are differences: what ran before never leaks in."""
    before, drafts, start = engine.metrics.snapshot(), engine.metrics.spec_counts(), time.perf_counter()
    with RequestProgress(context.stderr, talk.total(jobs), what) as progress:
        watch = Watch(on_answer=progress.finished, follow=talk.follow)
        answers = run_jobs(engine, jobs, stop, watch, concurrency=concurrency)
    seconds = time.perf_counter() - start
    counts: Mapping[str, int | float] = difference(before, engine.metrics.snapshot())
    return Measured(answers, seconds, counts, engine.metrics.spec_counts().since(drafts))
