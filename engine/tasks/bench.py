"""`task=bench`: offline throughput and latency of one configuration, measured so that it does not mislead.

Importable without torch. Knows no loop; every count comes from token ids and counter differences.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from engine.build import choice, number
from engine.errors import UserError
from engine.graphs.cost import cost_rows
from engine.params import SamplingParams
from engine.runs import OUTPUTS
from engine.tasks.base import EXIT_INTERRUPTED, EXIT_OK, Outcome, Task, TaskContext
from engine.tasks.bench_report import Goal, bench_table, medians, stop_warnings, warnings_of
from engine.tasks.bench_side import Side
from engine.tasks.bench_spec import compared, order_warnings, spec_result, spec_warnings
from engine.tasks.bench_turns import Order, run_alone, run_both
from engine.tasks.interrupts import StopFlag
from engine.tasks.report import answer_row
from engine.tasks.requests import load_workload, sampling_params
from engine.workloads.base import Workload

PLAIN = ("spec=none",)


class Bench(Task):
    """Warm-up, then `repeats` runs over the same requests; every figure is the median over the repeats."""

    main_figure = "output_tokens_per_s"

    @dataclass(frozen=True)
    class Config(Task.Config):
        """warmup: runs that are not counted. concurrency: requests in flight, null: all of them. raw: without
        the chat template. ignore_eos: every answer has max_tokens tokens; off, since text past its end
        flatters drafters. reference: with drafts, plain decoding takes turns with them. keep_cache: runs find
        the prefixes that the runs before left; off, since repeats would otherwise measure no prefill.
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
        with StopFlag(context.stderr) as stop:
            own, plain, order = self._measured(context, workload, params, stop)
            stopped = stop.requested
        if own.runs:
            rows = (answer_row(a, own.items[a.job.key], a.job.key, a.job.turn) for a in own.runs[-1].answers)
            context.folder().write_lines(OUTPUTS, rows)
        result = self._result(own, plain, order, workload, stopped)
        text = bench_table(result) if own.runs and self._config.format == "text" else ""
        if not text:  # the table has the warnings in it
            for line in result["warnings"]:
                print(f"warning: {line}", file=context.stderr)
        return Outcome(result, text, EXIT_INTERRUPTED if stopped else EXIT_OK)

    def _measured(
        self, context: TaskContext, workload: Workload, params: SamplingParams, stop: StopFlag
    ) -> tuple[Side, Side | None, Order]:
        """The configuration, and plain decoding where the two are compared; both closed."""
        options = self._config
        reference = plain_config(context) if options.reference else None
        with closing(Side(context, context.config, workload, params, options, stop, record=True)) as own:
            if reference is None:
                return own, None, run_alone(own, options.repeats)
            with closing(Side(context, reference, workload, params, options, stop, record=False)) as plain:
                return own, plain, run_both(own, plain, options.repeats, options.warmup, stop)

    def _result(
        self, own: Side, plain: Side | None, order: Order, workload: Workload, stopped: bool
    ) -> dict[str, Any]:
        engine, runs = own.engine, own.runs
        figures = medians(runs, Goal(self._config.ttft_limit_ms, self._config.tpot_limit_ms))
        drafted = sum(run.counts["drafted_tokens"] for run in runs)
        warnings = [
            *warnings_of(workload, runs, self._config.ignore_eos),
            *spec_warnings(engine, drafted, self._config.raw),
            *order_warnings(order.alone, order.failed, len(plain.runs) if plain is not None else 0),
            *(stop_warnings(runs, self._config.repeats) if stopped else ()),
        ]
        return {
            "task": "bench",
            "interrupted": stopped,
            **figures,
            "spec": spec_result(engine, [run.spec for run in runs], [run.counts for run in runs]),
            **compared(figures, None if plain is None else medians(plain.runs), order.alone),
            "captures": cost_rows(engine.metrics.captures),
            "peak_memory_bytes": order.peak,
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
            "warnings": warnings,
        }


def plain_config(context: TaskContext) -> dict[str, Any] | None:
    """The same configuration without drafts; None where it has none already."""
    plain = context.compose(PLAIN)
    return None if context.config["spec"] == plain["spec"] else {**context.config, "spec": plain["spec"]}
