"""Runs very many requests through an engine for throughput: new ones join in waves, not one by one.

Each join costs a prefill step; where thousands of rows decode, a step for the few that ended in the last one
would come between all decode steps. Importable without torch. Knows no task and no text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from engine.tasks.drive import Answer, Job

if TYPE_CHECKING:
    from engine.tasks.base import TextEngine

WAVES = 8  # a wave is an eighth of the rows


def run_in_waves(
    engine: TextEngine,
    jobs: Sequence[Job],
    rows: int,
    over: Callable[[], bool],
    on_answer: Callable[[Answer], None],
) -> list[Answer]:
    """Answers in the jobs' order. rows: requests that run at a time. over: asked at every step; once it is
    true, what runs is cancelled and its part kept, what waits is left out."""
    waiting, running, done = list(reversed(jobs)), dict[str, tuple[Job, float]](), list[Answer]()
    wave = max(1, rows // WAVES)
    ended = False
    while waiting or running:
        if not ended and over():
            ended = True
            waiting.clear()
            for request_id in running:
                engine.cancel(request_id)
        if len(running) <= rows - wave:
            _start(engine, waiting, running, rows)
        for delta in engine.step():
            if delta.finish_reason is not None and delta.request_id in running:
                output = engine.output(delta.request_id)
                if output is not None:
                    answer = Answer(*running.pop(delta.request_id), output)
                    done.append(answer)
                    on_answer(answer)
    order = {job.key: place for place, job in enumerate(jobs)}
    return sorted(done, key=lambda answer: order[answer.job.key])


def _start(engine: TextEngine, waiting: list[Job], running: dict[str, tuple[Job, float]], rows: int) -> None:
    """Fill up all rows."""
    while waiting and len(running) < rows:
        job = waiting.pop()
        running[engine.add(job.ids, job.params)] = (job, time.perf_counter())
