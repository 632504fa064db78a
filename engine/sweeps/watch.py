"""What a person sees of a running sweep, and the summary after every job. Reads the folder alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TextIO

from engine.sweeps.cells import Cell
from engine.sweeps.figure import MainFigure
from engine.sweeps.folder import LOG, SweepFolder
from engine.sweeps.states import FINISHED, JobState

POLL_SECONDS = 0.2
SECONDS_A_JOB = 0.01  # longer between looks at many files


class Watch:
    """`with Watch(...) as watch:` a thread looks at the jobs that are expected, whoever runs them.

    total: jobs of the sweep in the end. judge: the figure that a cell is compared by.
    """

    def __init__(
        self,
        folder: SweepFolder,
        total: int,
        judge: Callable[[Cell], MainFigure],
        summarise: Callable[[], object],
        stderr: TextIO,
    ) -> None:
        self._folder, self._stderr, self._summarise, self._judge = folder, stderr, summarise, judge
        self._total, self._start, self._done = total, time.monotonic(), 0
        self._cells: dict[str, Cell] = {}
        self._open: dict[str, str | None] = {}
        self._begun: set[str] = set()
        self._best: tuple[float, Cell] | None = None
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.look()

    def know(self, cells: Sequence[Cell]) -> None:
        """Cells that can run, in the order in which they are counted; some may have ended before."""
        with self._lock:
            for cell in cells:
                self._cells[cell.id] = cell
                self._rank(cell)
            self._total = max(self._total, len(self._cells))

    def expect(self, cells: Sequence[Cell]) -> None:
        """Known cells that run from now on."""
        with self._lock:
            self._open |= {cell.id: _stamp(self._folder.state(cell.id)) for cell in cells}

    def look(self) -> frozenset[str]:
        """Say what has happened since the last look; the cells whose jobs have not ended."""
        with self._lock:
            states = {cell_id: self._folder.state(cell_id) for cell_id in self._open}
            ended = [s for cell_id, s in states.items() if s is not None and _stamp(s) != self._open[cell_id]]
            for state in ended:
                self._end(state)
            for cell_id in self._open:
                if cell_id not in self._begun and self._running(cell_id, states[cell_id]):
                    self._begun.add(cell_id)
                    number = 1 + list(self._cells).index(cell_id)
                    self._say(f"job {number} of {self._total}: {self._cells[cell_id].title}")
            still = frozenset(self._open)
        if ended:
            self._summarise()
        return still

    def value(self, cell: Cell) -> float | None:
        """What a finished job is compared by."""
        state = self._folder.state(cell.id)
        finished = state is not None and state.state == FINISHED
        return self._judge(cell).of(self._folder.result(cell.id)) if finished else None

    def _run(self) -> None:
        while not self._ended.wait(max(POLL_SECONDS, len(self._open) * SECONDS_A_JOB)):
            self.look()

    def _end(self, state: JobState) -> None:
        del self._open[state.id]
        self._begun.discard(state.id)
        self._done += 1
        self._rank(self._cells[state.id])
        self._say(self._line(state))

    def _running(self, cell_id: str, state: JobState | None) -> bool:
        return state is None and (self._folder.job(cell_id) / LOG).is_file()

    def _line(self, state: JobState) -> str:
        cell = self._cells[state.id]
        value = self.value(cell) if state.state == FINISHED else None
        shown = "" if value is None else f", {self._judge(cell).shown(value)}"
        why = f": {state.reason}" if state.reason else ""
        words = f"{state.state.replace('_', ' ')} in {_time(state.seconds)}{shown}  {cell.title}{why}"
        count = f"[{self._ended_jobs()}/{self._total}]"
        return "; ".join([f"{count} {words}", *self._left(), *self._best_so_far()])

    def _ended_jobs(self) -> int:
        ended = (cell_id for cell_id in self._cells if cell_id not in self._open)
        return sum(self._folder.state(cell_id) is not None for cell_id in ended)

    def _left(self) -> list[str]:
        left = self._total - self._ended_jobs()
        if left <= 0 or self._folder.wish():  # asked to stop: the others do not run now
            return []
        return [f"about {_time((time.monotonic() - self._start) / self._done * left)} left"]

    def _best_so_far(self) -> list[str]:
        if self._best is None:
            return []
        value, cell = self._best
        return [f"best so far: {self._judge(cell).shown(value)} with {cell.title}"]

    def _rank(self, cell: Cell) -> None:
        value = self.value(cell)
        if value is not None and (self._best is None or self._judge(cell).better(value, self._best[0])):
            self._best = value, cell

    def _say(self, line: str) -> None:
        with suppress(OSError, ValueError):  # nobody reads any more: the jobs go on
            print(line, file=self._stderr, flush=True)


def _stamp(state: JobState | None) -> str | None:
    """Tells one attempt's end from another's."""
    return None if state is None else f"{state.attempt} {state.ended}"


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
