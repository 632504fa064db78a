"""Conversations of several turns run as rounds of one batch, and the live text of a single one.

Importable without torch. Knows no task's options and no run folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TextIO

from engine.runs import json_line
from engine.tasks.base import TextEngine
from engine.tasks.drive import Answer, Job, Watch, run_jobs
from engine.tasks.interrupts import StopFlag
from engine.tasks.progress import RequestProgress
from engine.tasks.report import answer_row
from engine.tasks.requests import Message, first_messages, fits
from engine.workloads.base import WorkItem

if TYPE_CHECKING:
    from engine.request import Delta


@dataclass
class Conversations:
    """The items' turns, one round after the other: round k asks every item that has a k-th turn."""

    engine: TextEngine
    items: Sequence[WorkItem]
    out: TextIO
    stop: StopFlag
    live: LiveText | None
    stderr: TextIO
    answers: list[Answer] = field(default_factory=list)
    texts: dict[int, list[str]] = field(default_factory=dict)
    histories: dict[int, tuple[Message, ...]] = field(default_factory=dict)

    def run(self, jobs: Sequence[Job]) -> None:
        turn = 0
        while jobs and not self.stop.requested:
            self._round(jobs, turn)
            turn += 1
            jobs = self._next_jobs(jobs, turn)

    def _round(self, jobs: Sequence[Job], turn: int) -> None:
        with RequestProgress(self.stderr, len(jobs)) as progress:

            def on_answer(answer: Answer) -> None:
                progress.finished(answer)
                self._keep(answer, turn)

            watch = Watch(None if self.live is None else self.live.show, on_answer)
            self.answers += run_jobs(self.engine, jobs, self.stop, watch)

    def _keep(self, answer: Answer, turn: int) -> None:
        key = answer.job.key
        self.out.write(json_line(answer_row(answer, self.items[key], key, turn)))
        texts = [sample.text for sample in answer.samples]
        self.texts[key] = texts if turn == 0 else [*self.texts[key], *texts]

    def _next_jobs(self, jobs: Sequence[Job], turn: int) -> list[Job]:
        """The first sample of each answer becomes history; a conversation that no longer fits ends here."""
        following = [self._follow(job, turn) for job in jobs if len(self.items[job.key].turns) > turn]
        fitting = [job for job in following if fits(job, self.engine)]
        for job in following:
            if job not in fitting:
                print(
                    f"conversation {job.key + 1} is full before turn {turn + 1}: it ends here",
                    file=self.stderr,
                )
        return fitting

    def _follow(self, job: Job, turn: int) -> Job:
        item = self.items[job.key]
        history = self.histories.get(job.key, first_messages(item))
        answer = {"role": "assistant", "content": self.texts[job.key][(turn - 1) * job.params.n]}
        messages = (*history, answer, {"role": "user", "content": item.turns[turn]})
        self.histories[job.key] = messages
        return replace(job, ids=tuple(self.engine.tokenizer.encode_chat(messages)))


class LiveText:
    """Text on stdout as it arrives, after `header`. A reader that went away ends the run quietly."""

    def __init__(self, stdout: TextIO, stop: StopFlag, header: str = "") -> None:
        self._stdout = stdout
        self._stop = stop
        self._header = header
        self._last = "\n"
        self.gone = False

    def show(self, delta: Delta) -> None:
        """Print a piece; nothing more after the reader is gone."""
        text = delta.text
        if not text or self._stop.requested:
            return
        try:
            print(self._header + text, end="", file=self._stdout, flush=True)
            self._header = ""
        except BrokenPipeError:
            self.gone = True
            self._stop.request()
        self._last = text[-1]

    def end(self) -> None:
        """The text ends with one line break, so that the next line stands alone."""
        if self._last != "\n":
            print(file=self._stdout)
