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
from engine.metrics import difference
from engine.runs import OUTPUTS, WORKLOAD
from engine.tasks.base import EXIT_INTERRUPTED, EXIT_OK, Outcome, Task, TaskContext, TextEngine
from engine.tasks.bench_report import Measured, bench_table, medians, warnings_of
from engine.tasks.drive import Job, Watch, run_jobs
from engine.tasks.generate import record_engine
from engine.tasks.interrupts import StopFlag
from engine.tasks.memory_use import peak_memory_bytes
from engine.tasks.progress import RequestProgress
from engine.tasks.report import answer_row
from engine.tasks.requests import load_workload, make_jobs, sampling_params, warn_of_turns
from engine.workloads.base import WorkItem, Workload


class Bench(Task):
    """Warm-up, then `repeats` runs over the same requests; every figure is the median over the repeats."""

    @dataclass(frozen=True)
    class Config(Task.Config):
        """warmup: runs that are not counted. concurrency: requests in flight, null: all of them. raw: without
        the chat template. ignore_eos: every answer has max_tokens tokens; off, since text past its end
        flatters drafters. keep_cache: runs find the prefixes that the runs before left; off, since repeats of
        the same prompts would otherwise measure no prefill."""

        format: str = choice("text", ("text", "json"))
        warmup: int = number(1, ge=0)
        repeats: int = number(3, ge=1)
        concurrency: int | None = number(None, ge=1)
        ignore_eos: bool = False
        keep_cache: bool = False
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
        engine = context.make_engine(context.config)
        try:
            record_engine(context, engine)
            items = workload.items(engine.shape.vocab_size)
            warn_of_turns(items, "bench", context)
            context.folder().write_lines(WORKLOAD, (item.as_row() for item in items))
            jobs = make_jobs(engine, items, params, self._config.raw)
            return self._measure(context, engine, workload, items, jobs)
        finally:
            engine.close()

    def _measure(
        self,
        context: TaskContext,
        engine: TextEngine,
        workload: Workload,
        items: Sequence[WorkItem],
        jobs: Sequence[Job],
    ) -> Outcome:
        runs: list[Measured] = []
        with StopFlag(context.stderr) as stop:
            for number_ in range(self._config.warmup + self._config.repeats):
                if not self._config.keep_cache:
                    engine.forget_prefixes()
                run = _one_run(engine, jobs, stop, self._config.concurrency, context)
                if stop.requested:
                    break
                if number_ >= self._config.warmup:
                    runs.append(run)
        if runs:
            rows = (answer_row(a, items[a.job.key], a.job.key) for a in runs[-1].answers)
            context.folder().write_lines(OUTPUTS, rows)
        result = self._result(context, engine, workload, runs, stop.requested)
        for line in result["warnings"]:
            print(f"warning: {line}", file=context.stderr)
        code = EXIT_INTERRUPTED if stop.requested else EXIT_OK
        return Outcome(result, bench_table(result) if runs else "", code)

    def _result(
        self,
        context: TaskContext,
        engine: TextEngine,
        workload: Workload,
        runs: Sequence[Measured],
        stopped: bool,
    ) -> dict[str, Any]:
        figures = medians(runs)
        return {
            "task": "bench",
            "interrupted": stopped,
            **figures,
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
            "warnings": warnings_of(context.config, workload, runs, self._config.ignore_eos),
        }


def _one_run(
    engine: TextEngine, jobs: Sequence[Job], stop: StopFlag, concurrency: int | None, context: TaskContext
) -> Measured:
    """All jobs once. Counters are differences: what ran before never leaks in."""
    before, start = engine.metrics.snapshot(), time.perf_counter()
    with RequestProgress(context.stderr, len(jobs), "bench") as progress:
        watch = Watch(on_answer=progress.finished)
        answers = run_jobs(engine, jobs, stop, watch, concurrency=concurrency)
    seconds = time.perf_counter() - start
    counts: Mapping[str, int | float] = difference(before, engine.metrics.snapshot())
    return Measured(answers, seconds, counts)
