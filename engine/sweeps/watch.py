"""What a person sees of a running sweep, and the summary after every job. Reads the folder alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TextIO

from engine.sweeps.cells import Cell
from engine.sweeps.figure import MainFigure
from engine.sweeps.folder import LOG, SweepFolder
from engine.sweeps.states import FINISHED, JobState

POLL_SECONDS = 0.2
SECONDS_A_JOB = 0.01  # longer between looks at many files


class Watch:
    """`with Watch(...)`: a thread looks at the jobs, whoever runs them, until all of `cells` have ended.

    cells: that can run. todo: those that run now; the others count as done. figures: cell id -> what its job
    is compared by.
    """

    def __init__(
        self,
        folder: SweepFolder,
        cells: Sequence[Cell],
        todo: Sequence[Cell],
        figures: Mapping[str, MainFigure],
        summarise: Callable[[], object],
        stderr: TextIO,
    ) -> None:
        self._folder, self._stderr, self._summarise = folder, stderr, summarise
        self._titles = {cell.id: cell.title for cell in cells}
        self._open = {cell.id: _stamp(folder.state(cell.id)) for cell in todo}
        self._begun: set[str] = set()
        self._figures = figures
        self._total, self._mine, self._start = len(cells), len(todo), time.monotonic()
        self._best: tuple[float, str] | None = None
        for cell in cells:
            self._rank(cell.id)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    @property
    def open(self) -> frozenset[str]:
        """Cells whose jobs have not ended."""
        return frozenset(self._open)

    def _run(self) -> None:
        while not self._ended.wait(max(POLL_SECONDS, len(self._open) * SECONDS_A_JOB)):
            self._look()

    def _look(self) -> None:
        states = {cell_id: self._folder.state(cell_id) for cell_id in self._open}
        ended = [s for cell_id, s in states.items() if s is not None and _stamp(s) != self._open[cell_id]]
        for state in ended:
            del self._open[state.id]
            self._rank(state.id)
            self._say(self._line(state))
        for cell_id in self._open:
            if cell_id not in self._begun and self._running(cell_id, states[cell_id]):
                self._begun.add(cell_id)
                self._say(f"job {self._number(cell_id)} of {self._total}: {self._titles[cell_id]}")
        if ended:
            self._summarise()

    def _running(self, cell_id: str, state: JobState | None) -> bool:
        return state is None and (self._folder.job(cell_id) / LOG).is_file()

    def _line(self, state: JobState) -> str:
        done = self._total - len(self._open)
        figure = self._figures[state.id].of(self._folder.result(state.id))
        shown = "" if figure is None or state.state != FINISHED else f", {figure:.4g}"
        why = f": {state.reason}" if state.reason else ""
        words = f"[{done}/{self._total}] {state.state.replace('_', ' ')} in {_time(state.seconds)}{shown}"
        tail = [f"{words}  {self._titles[state.id]}{why}", *self._left(), *self._best_so_far()]
        return "; ".join(tail)

    def _left(self) -> list[str]:
        done, left = self._mine - len(self._open), len(self._open)
        if not done or not left:
            return []
        return [f"about {_time((time.monotonic() - self._start) / done * left)} left"]

    def _best_so_far(self) -> list[str]:
        if self._best is None:
            return []
        value, cell_id = self._best
        name = self._figures[cell_id].name
        return [f"best so far {value:.4g} {name} with {self._titles[cell_id]}"]

    def _rank(self, cell_id: str) -> None:
        state, figure = self._folder.state(cell_id), self._figures.get(cell_id)
        if figure is None or state is None or state.state != FINISHED:
            return
        value = figure.of(self._folder.result(cell_id))
        if value is not None and (self._best is None or figure.better(value, self._best[0])):
            self._best = value, cell_id

    def _number(self, cell_id: str) -> int:
        return 1 + list(self._titles).index(cell_id)

    def _say(self, line: str) -> None:
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
