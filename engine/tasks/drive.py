"""Runs a list of requests through an engine, step by step, so that it can stop between two steps.

Importable without torch. Knows no task, no prompt text and no file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.tasks.interrupts import StopFlag

if TYPE_CHECKING:
    from engine.params import SamplingParams
    from engine.request import Completion, Delta, RequestOutput
    from engine.tasks.base import TextEngine


@dataclass(frozen=True)
class Job:
    """One prompt to run. key: what the caller knows it by."""

    key: int
    ids: tuple[int, ...]
    params: SamplingParams


@dataclass(frozen=True)
class Answer:
    """A job's output. started: perf_counter seconds when the engine got it; its times count from there."""

    job: Job
    started: float
    output: RequestOutput

    @property
    def samples(self) -> Sequence[Completion]:
        return self.output.completions

    @property
    def cut(self) -> bool:
        """Whether it was cancelled before its end."""
        return any(sample.finish_reason == "cancelled" for sample in self.samples)

    @property
    def tokens(self) -> int:
        return self.output.completion_tokens


@dataclass(frozen=True)
class Watch:
    """Who is told of what. on_delta: of every step's news, which makes each request stream its text."""

    on_delta: Callable[[Delta], None] | None = None
    on_answer: Callable[[Answer], None] | None = None


def run_jobs(
    engine: TextEngine,
    jobs: Sequence[Job],
    stop: StopFlag,
    watch: Watch | None = None,
    *,
    concurrency: int | None = None,
) -> list[Answer]:
    """Run all jobs, at most `concurrency` at a time (None: hand over all, the engine queues).

    Returns the answers in the jobs' order. When `stop` is requested, what runs is cancelled and its part
    kept; what had not begun is left out.
    """
    run = _Run(engine, watch or Watch(), list(reversed(jobs)))
    limit = concurrency or max(len(jobs), 1)
    while run.waiting or run.running:
        if stop.requested:
            run.cancel()
        while run.waiting and len(run.running) < limit:
            run.start()
        run.step()
    order = {job.key: position for position, job in enumerate(jobs)}
    return sorted(run.done, key=lambda answer: order[answer.job.key])


class _Run:
    """The jobs by stage: waiting (next one last), running, done."""

    def __init__(self, engine: TextEngine, watch: Watch, waiting: list[Job]) -> None:
        self._engine = engine
        self._watch = watch
        self._cancelled = False
        self.waiting = waiting
        self.running: dict[str, tuple[Job, float]] = {}
        self.done: list[Answer] = []

    def start(self) -> None:
        """Hand over the next job."""
        job, started = self.waiting.pop(), time.perf_counter()
        request_id = self._engine.add(job.ids, job.params, listener=self._watch.on_delta is not None)
        self.running[request_id] = (job, started)

    def step(self) -> None:
        """One turn of the engine."""
        for delta in self._engine.step():
            if self._watch.on_delta is not None:
                self._watch.on_delta(delta)
            if delta.finish_reason is not None:
                self._collect(delta.request_id)

    def cancel(self) -> None:
        """Drop what waits, cancel what runs; once."""
        if not self._cancelled:
            self._cancelled = True
            self.waiting.clear()
            for request_id in self.running:
                self._engine.cancel(request_id)

    def _collect(self, request_id: str) -> None:
        if request_id not in self.running:
            return
        output = self._engine.output(request_id)
        if output is None:  # other samples of it still run
            return
        answer = Answer(*self.running.pop(request_id), output)
        self.done.append(answer)
        if self._watch.on_answer is not None:
            self._watch.on_answer(answer)
