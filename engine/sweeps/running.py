"""The jobs of a judged sweep, from launch to exit code. Knows how pieces meet, not how cells are found."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TextIO

from engine.sweeps.cells import Cell
from engine.sweeps.figure import main_figure
from engine.sweeps.folder import SweepFolder
from engine.sweeps.launch import LaunchPlan
from engine.sweeps.listing import closing
from engine.sweeps.states import FAILURES, FINISHED, OK, JobState
from engine.sweeps.stopping import Stopping
from engine.sweeps.study import Study
from engine.sweeps.summary import write_summary
from engine.sweeps.supervise import Supervisor
from engine.sweeps.watch import Watch
from engine.tasks.base import EXIT_INTERRUPTED, EXIT_OK

EXIT_FAILED = 1
log = logging.getLogger("syncless")


@dataclass(frozen=True)
class Sweep:
    """What is to be done. cells: all, judged. todo: those that run now. folder: held by the caller."""

    study: Study
    cells: tuple[Cell, ...]
    todo: tuple[Cell, ...]
    plan: LaunchPlan
    folder: SweepFolder

    def states(self) -> dict[str, JobState]:
        found = {cell.id: self.folder.state(cell.id) for cell in self.cells}
        return {cell_id: state for cell_id, state in found.items() if state is not None}


def run_jobs(sweep: Sweep, out: TextIO, err: TextIO) -> int:
    """Run what is to do, keep the summary, write the report; the exit code."""
    settings = sweep.study.config
    with Stopping(sweep.folder, err) as stop:
        complete = _launch(sweep, err)
    page = write_summary(sweep.folder.path, page=True)
    states = sweep.states()
    print(closing(sweep.cells, states, sweep.folder.path, page), file=out, flush=True)
    if stop.requested:
        return EXIT_INTERRUPTED
    ends = [state.state for state in states.values()]
    failed = any(end in FAILURES for end in ends)
    wrong = not complete or FINISHED not in ends or (failed and (settings.strict or settings.fail_fast))
    return EXIT_FAILED if wrong else EXIT_OK


def supervisor(sweep: Sweep, cells: Sequence[Cell]) -> Supervisor:
    """What the launcher runs for each of the cells."""
    settings = sweep.study.config
    overrides = {cell.id: cell.overrides for cell in cells}
    return Supervisor(str(sweep.folder.path), sweep.plan.cwd, overrides, settings.timeout, settings.fail_fast)


def _launch(sweep: Sweep, err: TextIO) -> bool:
    """Whether the launcher has brought every job to an end."""
    settings = sweep.study.config
    runnable = [cell for cell in sweep.cells if cell.verdict == OK]
    summarise = partial(write_summary, sweep.folder.path, page=False)
    figures = {cell.id: main_figure(cell, settings.figure, settings.better) for cell in runnable}
    watch = Watch(sweep.folder, runnable, sweep.todo, figures, summarise, err)
    ids = [cell.id for cell in sweep.todo]
    with watch:
        try:
            if ids:
                sweep.plan.launch(str(sweep.folder.path), ids, supervisor(sweep, sweep.todo))
        except KeyboardInterrupt:
            return False  # the second signal: the wish has reached the jobs
        except Exception as error:  # whatever a launcher's own machinery raises; the finished jobs are safe
            log.error("the launcher failed: %s: %s", type(error).__name__, error)
            return False
    if watch.open and not sweep.folder.wish():
        log.warning("%d jobs did not run: other processes still hold them; resume later", len(watch.open))
    return not watch.open
