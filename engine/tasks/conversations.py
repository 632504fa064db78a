"""Conversations of several turns run as one batch, and the live text of a single one.

Importable without torch. Knows no task's options and no run folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from engine.runs import json_line
from engine.tasks.base import TextEngine
from engine.tasks.dialogues import Dialogues
from engine.tasks.drive import Answer, Job, Watch, run_jobs
from engine.tasks.interrupts import StopFlag
from engine.tasks.progress import RequestProgress
from engine.tasks.report import answer_row
from engine.workloads.base import WorkItem

if TYPE_CHECKING:
    from engine.answers import Delta


@dataclass
class Conversations:
    """The items' requests; a turn is asked as soon as the one before it was answered."""

    engine: TextEngine
    items: Sequence[WorkItem]
    out: TextIO
    stop: StopFlag
    live: LiveText | None
    stderr: TextIO
    answers: list[Answer] = field(default_factory=list)
    texts: dict[int, list[str]] = field(default_factory=dict)

    def run(self, jobs: Sequence[Job]) -> None:
        """Ask them all; answers are written as they come."""
        talk = Dialogues(self.engine, self.items, self.stderr)
        with RequestProgress(self.stderr, talk.total(jobs)) as progress:

            def on_answer(answer: Answer) -> None:
                progress.finished(answer)
                self._keep(answer)

            watch = Watch(None if self.live is None else self.live.show, on_answer, talk.follow)
            self.answers += run_jobs(self.engine, jobs, self.stop, watch)

    def _keep(self, answer: Answer) -> None:
        key = answer.job.key
        self.out.write(json_line(answer_row(answer, self.items[key], key, answer.job.turn)))
        self.texts[key] = [*self.texts.get(key, []), *(sample.text for sample in answer.samples)]


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
