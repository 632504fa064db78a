"""A sweep's command line: a new one, or one to go on with; judged, written down, run. Starts no process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from engine.errors import UserError
from engine.sweeps.axes import axes_of, line_of, lines_of
from engine.sweeps.cells import Cell, judged, require_one
from engine.sweeps.folder import SweepFolder
from engine.sweeps.launch import LaunchPlan, launch_plan
from engine.sweeps.listing import listing
from engine.sweeps.manifest import cells_of, manifest_of, study_of
from engine.sweeps.request import SweepRequest, sweep_request
from engine.sweeps.running import Sweep, run_jobs
from engine.sweeps.states import FAILURES, FINISHED, OK, JobState
from engine.sweeps.study import load_study
from engine.tasks.base import EXIT_OK


def run_sweep(arguments: Sequence[str], *, dry_run: bool = False) -> int:
    """The whole command; returns the exit code. UserError, before anything is made, for a wrong one."""
    request = sweep_request(arguments)
    with launch_plan(request.hydra) as plan:
        if request.resume is None:
            return _start(request, arguments, plan, dry_run, sys.stdout, sys.stderr)
        return _go_on(request, request.resume, plan, dry_run, sys.stdout, sys.stderr)


def _start(
    request: SweepRequest, arguments: Sequence[str], plan: LaunchPlan, dry_run: bool, out: TextIO, err: TextIO
) -> int:
    study = load_study(request.study, request.settings)
    cells = judged(lines_of(axes_of(study, request.overrides), study.config.extra))
    require_one(cells)
    todo = tuple(cell for cell in cells if cell.verdict == OK)
    if dry_run:
        print(listing(cells, {}, todo), file=out)
        return EXIT_OK
    folder = SweepFolder.create(plan.folder)
    with folder.locked():
        folder.write_manifest(manifest_of(arguments, study, cells))
        return run_jobs(Sweep(study, cells, todo, plan, folder), out, err)


def _go_on(
    request: SweepRequest, directory: str, plan: LaunchPlan, dry_run: bool, out: TextIO, err: TextIO
) -> int:
    folder = SweepFolder.open(directory)
    manifest = folder.manifest()
    study, cells = study_of(manifest, request.settings), cells_of(manifest)
    with folder.locked():
        states = {cell.id: folder.state(cell.id) for cell in cells}
        todo = [cell for cell in cells if cell.verdict == OK and _is_open(states[cell.id], request.retry)]
        if dry_run:
            print(listing(cells, {k: v for k, v in states.items() if v is not None}, todo), file=out)
            return EXIT_OK
        _require_same(todo, directory)
        return run_jobs(Sweep(study, cells, tuple(todo), plan, folder), out, err)


def _is_open(state: JobState | None, retry: frozenset[str]) -> bool:
    """Whether a job is to be run: not finished, and where it failed, asked for."""
    if state is None or state.state in retry:
        return True
    return state.state not in (FINISHED, *FAILURES)


def _require_same(todo: Sequence[Cell], directory: str) -> None:
    """Cells that compose to another config than when the sweep began cannot be compared with the rest."""
    now = {cell.overrides: cell.id for cell in judged([line_of(cell.overrides) for cell in todo])}
    changed = [cell for cell in todo if now.get(cell.overrides) != cell.id]
    if changed:
        raise UserError(
            f"resume={directory}: {len(changed)} of its cells ({changed[0].title}) compose to another config "
            "than at its start: the code or conf/ has changed; go on with the version that started it, or "
            "start a new sweep"
        )
