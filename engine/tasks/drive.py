"""Runs a list of requests through an engine, step by step, and assembles what comes back with its times.

Importable without torch. Knows no task, no prompt text and no file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.tasks.interrupts import StopFlag

if TYPE_CHECKING:
    from engine.batch import TokenLogprob
    from engine.params import SamplingParams
    from engine.request import Delta
    from engine.tasks.base import TextEngine


@dataclass(frozen=True)
class Job:
    """One prompt to run. key: what the caller knows it by."""

    key: int
    ids: tuple[int, ...]
    params: SamplingParams


@dataclass
class Sample:
    """One answer while it grows. times: perf_counter seconds at which the host had each token."""

    index: int
    parts: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def feed(self, delta: Delta, now: float) -> None:
        """Append a delta that arrived at `now`."""
        self.parts.append(delta.text)
        self.ids.extend(delta.token_ids)
        self.times.extend([now] * len(delta.token_ids))
        self.logprobs.extend(delta.logprobs or ())
        self.finish_reason = delta.finish_reason or self.finish_reason


@dataclass
class Answer:
    """All samples of one job. started: perf_counter seconds at which the engine got it."""

    job: Job
    started: float
    samples: list[Sample]

    @property
    def finished(self) -> bool:
        return all(sample.finish_reason for sample in self.samples)

    @property
    def cut(self) -> bool:
        """Whether it was cancelled before its end."""
        return any(sample.finish_reason == "cancelled" for sample in self.samples)

    @property
    def tokens(self) -> int:
        return sum(len(sample.ids) for sample in self.samples)


def run_jobs(
    engine: TextEngine,
    jobs: Sequence[Job],
    stop: StopFlag,
    *,
    concurrency: int | None = None,
    on_delta: Callable[[Job, Delta], None] | None = None,
    on_answer: Callable[[Answer], None] | None = None,
) -> list[Answer]:
    """Run all jobs, at most `concurrency` at a time (None: hand over all, the engine queues).

    Returns the answers in the jobs' order. When `stop` is requested, what runs is cancelled and its part
    kept; what had not begun is left out.
    """
    waiting = list(reversed(jobs))
    running: dict[str, Answer] = {}
    done: list[Answer] = []
    cancelled = False
    limit = concurrency or max(len(jobs), 1)
    while waiting or running:
        if stop.requested and not cancelled:
            cancelled = True
            waiting.clear()
            for request_id in running:
                engine.cancel(request_id)
        while waiting and len(running) < limit:
            _start(engine, waiting.pop(), running)
        for delta in engine.step():
            answer = _take(delta, running, on_delta)
            if answer is not None:
                done.append(answer)
                if on_answer is not None:
                    on_answer(answer)
    order = {job.key: position for position, job in enumerate(jobs)}
    return sorted(done, key=lambda answer: order[answer.job.key])


def _start(engine: TextEngine, job: Job, running: dict[str, Answer]) -> None:
    started = time.perf_counter()
    request_id = engine.add(job.ids, job.params)
    running[request_id] = Answer(job, started, [Sample(index) for index in range(job.params.n)])


def _take(
    delta: Delta, running: dict[str, Answer], on_delta: Callable[[Job, Delta], None] | None
) -> Answer | None:
    """Feed one delta; the answer if that completed it."""
    answer = running[delta.request_id]
    answer.samples[delta.index].feed(delta, time.perf_counter())
    if on_delta is not None:
        on_delta(answer.job, delta)
    return running.pop(delta.request_id) if answer.finished else None
