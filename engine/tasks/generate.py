"""`task=generate`: answers to a workload, or to one prompt whose text appears as it is made. Knows no loop.

Importable without torch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.build import choice, number
from engine.graphs.cost import cost_rows
from engine.metrics import difference, rates
from engine.provenance import device_facts
from engine.runs import WORKLOAD, write_json
from engine.step_costs import STEP_COSTS, as_document
from engine.tasks.base import EXIT_INTERRUPTED, EXIT_OK, Outcome, Task, TaskContext, TextEngine
from engine.tasks.conversations import Conversations, LiveText
from engine.tasks.drive import Answer, Job
from engine.tasks.interrupts import StopFlag
from engine.tasks.report import simulated_header, summary, totals
from engine.tasks.requests import load_workload, make_jobs, sampling_params
from engine.workloads.base import WorkItem


class Generate(Task):
    """Runs every item of the workload as one batch; conversations of several turns run turn by turn."""

    main_figure = "output_tokens_per_s"

    @dataclass(frozen=True)
    class Config(Task.Config):
        """raw: send texts as they are, without the chat template. show: answers printed at the end."""

        format: str = choice("text", ("text", "json"))
        raw: bool = False
        show: int = number(16, ge=0)

    def __init__(self, config: Config) -> None:
        self._config = config

    def run(self, context: TaskContext) -> Outcome:
        workload = load_workload(context)
        params = sampling_params(context.config)
        engine = context.make_engine(context.config)
        try:
            record_engine(context, engine)
            items = workload.items(engine.shape.vocab_size)
            context.folder().write_lines(WORKLOAD, (item.as_row() for item in items))
            jobs = make_jobs(engine, items, params, self._config.raw)
            live = context.config.get("prompt") is not None and params.n == 1
            found = self._answer(context, engine, items, jobs, live)
            return replace(found, result={**found.result, "representative": workload.representative})
        finally:
            engine.close()

    def _answer(
        self,
        context: TaskContext,
        engine: TextEngine,
        items: Sequence[WorkItem],
        jobs: Sequence[Job],
        live: bool,
    ) -> Outcome:
        before, start = engine.metrics.snapshot(), time.perf_counter()
        with StopFlag(context.stderr) as stop, context.folder().open_lines() as out:
            live_out = (
                LiveText(context.stdout, stop, simulated_header(engine.spec.simulated)) if live else None
            )
            talk = Conversations(engine, items, out, stop, live_out, context.stderr)
            talk.run(jobs)
        seconds = time.perf_counter() - start
        counts = difference(before, engine.metrics.snapshot())
        result = _result(engine, talk.answers, seconds, stop.requested, counts)
        if live_out is not None:
            live_out.end()
        text = "" if live else self._summary(items, talk, result)
        return Outcome(result, text, EXIT_INTERRUPTED if stop.requested else EXIT_OK)

    def _summary(self, items: Sequence[WorkItem], talk: Conversations, result: dict[str, Any]) -> str:
        keys = sorted(talk.texts)
        body = summary([items[k].title() for k in keys], [talk.texts[k] for k in keys], self._config.show)
        speed = f"{result['output_tokens_per_s']:.1f} tokens/s"
        header = simulated_header(result["simulated_accept_length"])
        return f"{header}{body}\n{len(keys)} answers, {result['output_tokens']} tokens, {speed}"


def record_engine(context: TaskContext, engine: TextEngine) -> None:
    """Provenance that is known only now: the seed in use, the device, the weight files, what memory is for,
    the step costs."""
    if engine.step_costs is not None:
        write_json(context.folder().path / STEP_COSTS, as_document(engine.step_costs))
    context.folder().record(
        seed=engine.seed,
        dtype=engine.dtype,
        model_files=dict(engine.model_files),
        memory=engine.memory_plan.as_dict(),
        **device_facts(engine.device),
    )
    if engine.device != "cpu":  # a CPU's memory is not divided beforehand
        print(engine.memory_plan.line(), file=context.stderr)


def _result(
    engine: TextEngine, answers: Sequence[Answer], seconds: float, stopped: bool, counts: dict[str, Any]
) -> dict[str, Any]:
    firsts = [a.started + s.token_times[0] for a in answers for s in a.samples if s.token_times]
    return {
        "task": "generate",
        "interrupted": stopped,
        "simulated_accept_length": engine.spec.simulated,
        **totals(answers, seconds),
        "first_token_at": _wall_clock(min(firsts)) if firsts else None,
        "seed": engine.seed,
        "device": engine.device,
        "dtype": engine.dtype,
        "metrics": counts,
        "rates": rates(counts),
        "captures": cost_rows(engine.metrics.captures),
    }


def _wall_clock(moment: float) -> float:
    """A perf_counter reading as seconds since the epoch."""
    return time.time() - (time.perf_counter() - moment)
