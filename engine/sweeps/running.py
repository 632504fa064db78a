"""The jobs of a judged sweep, from launch to exit code. Knows how pieces meet, not how cells are found."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TextIO

from engine.sweeps.axes import Axis, Line, lines_of
from engine.sweeps.cells import Cell, require_one
from engine.sweeps.figure import main_figure
from engine.sweeps.folder import SweepFolder
from engine.sweeps.launch import LaunchPlan
from engine.sweeps.listing import closing
from engine.sweeps.manifest import cells_of
from engine.sweeps.states import FAILURES, FINISHED, OK, JobState
from engine.sweeps.stopping import Stopping
from engine.sweeps.study import Study
from engine.sweeps.summary import write_summary
from engine.sweeps.supervise import Supervisor
from engine.sweeps.watch import Watch
from engine.tasks.base import EXIT_INTERRUPTED, EXIT_OK

EXIT_FAILED = 1
log = logging.getLogger("syncless")


class Chooser(ABC):
    """Which cells of a space run: those known at the start, and those found while the sweep runs."""

    trials: int = 0  # cells that are found while it runs

    @abstractmethod
    def first(self, axes: Sequence[Axis]) -> list[Line]:
        """What is known at the start."""

    def varying(self, axes: Sequence[Axis], lines: Sequence[Line]) -> list[str] | None:
        """Keys that tell cells apart; None: those that differ among the lines, which are all there are."""
        return None

    @abstractmethod
    def require_one(self, cells: Sequence[Cell]) -> None:
        """UserError where no cell can run: then the command line is wrong. cells: known at the start."""

    @abstractmethod
    def run(self, jobs: Jobs) -> bool:
        """Find and run the others; whether all of them came to an end."""


class Grid(Chooser):
    """All cells, known at the start."""

    def first(self, axes: Sequence[Axis]) -> list[Line]:
        return lines_of(axes)

    def require_one(self, cells: Sequence[Cell]) -> None:
        require_one(cells)

    def run(self, jobs: Jobs) -> bool:
        return True


@dataclass(frozen=True)
class Sweep:
    """What is to be done. cells: those known now, judged. todo: those of them that run. known: cells that
    could run at the sweep's start. chooser: finds the others. folder: held by the caller."""

    study: Study
    cells: tuple[Cell, ...]
    todo: tuple[Cell, ...]
    known: int
    chooser: Chooser
    plan: LaunchPlan
    folder: SweepFolder


class Jobs:
    """Runs cells through the launcher under one watch, as often as asked."""

    def __init__(self, sweep: Sweep, watch: Watch) -> None:
        self.folder = sweep.folder
        self._plan, self._settings, self._watch = sweep.plan, sweep.study.config, watch

    def value(self, cell: Cell) -> float | None:
        """What a cell's job is compared by; None where it did not finish, or cannot run."""
        return self._watch.value(cell)

    def run(self, cells: Sequence[Cell]) -> bool:
        """Whether every one of the jobs came to an end, good or bad."""
        self._watch.know(cells)
        self._watch.expect(cells)
        try:
            if cells:
                ids = [cell.id for cell in cells]
                self._plan.launch(str(self.folder.path), ids, self._supervisor(cells))
        except KeyboardInterrupt:
            return False  # the second signal: the wish has reached the jobs
        except Exception as error:  # whatever a launcher's own machinery raises; the finished jobs are safe
            log.error("the launcher failed: %s: %s", type(error).__name__, error)
            return False
        return not self._left()

    def _left(self) -> frozenset[str]:
        left = self._watch.look()
        if left and not self.folder.wish():
            log.warning("%d jobs did not run: other processes still hold them; resume later", len(left))
        return left

    def _supervisor(self, cells: Sequence[Cell]) -> Supervisor:
        overrides = {cell.id: cell.overrides for cell in cells}
        timeout, fail_fast = self._settings.timeout, self._settings.fail_fast
        return Supervisor(str(self.folder.path), self._plan.cwd, overrides, timeout, fail_fast)


def run_jobs(sweep: Sweep, out: TextIO, err: TextIO) -> int:
    """Run what is to do, keep the summary, write the report; the exit code."""
    directory, settings = sweep.folder.path, sweep.study.config
    judge = partial(main_figure, asked=settings.figure, better=settings.better)
    summarise = partial(write_summary, directory, page=False)
    watch = Watch(sweep.folder, sweep.known + sweep.chooser.trials, judge, summarise, err)
    watch.know([cell for cell in sweep.cells if cell.verdict == OK])
    with Stopping(sweep.folder, err) as stop, watch:
        jobs = Jobs(sweep, watch)
        complete = jobs.run(sweep.todo) and sweep.chooser.run(jobs)
    page = write_summary(directory, page=True)
    cells = cells_of(sweep.folder.manifest())
    states = sweep.folder.states(cell.id for cell in cells)
    print(closing(cells, states, directory, page), file=out, flush=True)
    return EXIT_INTERRUPTED if stop.requested else _exit_code(settings, states, complete)


def _exit_code(settings: Study.Config, states: Mapping[str, JobState], complete: bool) -> int:
    """0 where every job came to an end and one of them finished: rows that failed are results too."""
    ends = {state.state for state in states.values()}
    failed = bool(ends & {*FAILURES}) and (settings.strict or settings.fail_fast)
    return EXIT_OK if complete and FINISHED in ends and not failed else EXIT_FAILED
