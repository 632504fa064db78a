"""Runs a list of requests through an engine, step by step, so that it can stop between two steps.

Importable without torch. Knows no task, no prompt text and no file.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.tasks.interrupts import StopFlag
from engine.tasks.pace import Pace

if TYPE_CHECKING:
    from engine.answers import Completion, Delta, RequestOutput
    from engine.params import SamplingParams
    from engine.tasks.base import TextEngine


@dataclass(frozen=True)
class Job:
    """One prompt to run. key: what the caller knows it by. at: seconds after the start at which it arrives.
    turn: which one of a conversation it is."""

    key: int
    ids: tuple[int, ...]
    params: SamplingParams
    at: float = 0.0
    turn: int = 0


@dataclass(frozen=True)
class Answer:
    """A job's output. started: perf_counter seconds when the engine got it; its times count from there.

    late: seconds from its time of arrival until then, where requests have such times: the engine was in the
    middle of a step, or had no room. Latencies that leave it out flatter an engine that is overloaded.
    """

    job: Job
    started: float
    output: RequestOutput
    late: float = 0.0

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
    """Who is told of what. on_delta: of every step's news, which makes each request stream its text. follow:
    names the job that an answer brings about (a conversation's next turn); it goes before what waits."""

    on_delta: Callable[[Delta], None] | None = None
    on_answer: Callable[[Answer], None] | None = None
    follow: Callable[[Answer], Job | None] | None = None


def run_jobs(
    engine: TextEngine,
    jobs: Sequence[Job],
    stop: StopFlag,
    watch: Watch | None = None,
    *,
    concurrency: int | None = None,
    pace: Pace | None = None,
) -> list[Answer]:
    """Run all jobs, each when it arrives, at most `concurrency` at a time (None: the engine queues).

    Returns the answers in the jobs' order, turn by turn. When `stop` is requested, what runs is cancelled and
    its part kept; what had not begun is left out.
    """
    limit = concurrency or max(len(jobs), 1)
    run = _Run(engine, watch or Watch(), jobs, pace or Pace())
    while run.waiting or run.following or run.running:
        if stop.requested:
            run.cancel()
        run.start(limit)
        run.step()
    order = {job.key: position for position, job in enumerate(jobs)}
    return sorted(run.done, key=lambda answer: (order[answer.job.key], answer.job.turn))


class _Run:
    """The jobs by stage: waiting for their time (in its order), following an answer, running, done."""

    def __init__(self, engine: TextEngine, watch: Watch, jobs: Sequence[Job], pace: Pace) -> None:
        self._engine = engine
        self._watch = watch
        self._pace = pace
        self._timed = any(job.at > 0 for job in jobs)
        self._cancelled = False
        self.waiting = deque(sorted(jobs, key=lambda job: job.at))
        self.following: deque[Job] = deque()
        self.running: dict[str, tuple[Job, float, float]] = {}
        self.done: list[Answer] = []
        pace.begin()

    def start(self, limit: int) -> None:
        """Hand over what has arrived, as far as there is room."""
        while len(self.running) < limit and (job := self._next()) is not None:
            late = self._pace.late(job.at) if self._timed and job.turn == 0 else 0.0
            started = time.perf_counter()
            listener = self._watch.on_delta is not None
            self.running[self._engine.add(job.ids, job.params, listener=listener)] = (job, started, late)

    def _next(self) -> Job | None:
        if self.following:
            return self.following.popleft()
        if self.waiting and self._pace.due(self.waiting[0].at):
            return self.waiting.popleft()
        return None

    def step(self) -> None:
        """One turn of the engine; without requests in it, a wait for the next one."""
        if not self.running and self.waiting:
            return self._pace.wait(self.waiting[0].at)
        for delta in self._engine.step():
            if self._watch.on_delta is not None:
                self._watch.on_delta(delta)
            if delta.finish_reason is not None:
                self._collect(delta.request_id)
        return None

    def cancel(self) -> None:
        """Drop what waits, cancel what runs; once."""
        if not self._cancelled:
            self._cancelled = True
            self.waiting.clear()
            self.following.clear()
            for request_id in self.running:
                self._engine.cancel(request_id)

    def _collect(self, request_id: str) -> None:
        if request_id not in self.running:
            return
        output = self._engine.output(request_id)
        if output is None:  # other samples of it still run
            return
        job, started, late = self.running.pop(request_id)
        answer = Answer(job, started, output, late)
        self.done.append(answer)
        if self._watch.on_answer is not None:
            self._watch.on_answer(answer)
        if self._watch.follow is not None and not self._cancelled:
            following = self._watch.follow(answer)
            self.following += [] if following is None else [following]
