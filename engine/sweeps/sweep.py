"""A sweep's command line: a new one, or one to go on with; judged, written down, run. Starts no process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from engine.errors import UserError
from engine.sweeps.axes import axes_of, extra_lines, line_of
from engine.sweeps.cells import Cell, judged
from engine.sweeps.code import of_other_code
from engine.sweeps.folder import SweepFolder
from engine.sweeps.launch import LaunchPlan, launch_plan
from engine.sweeps.listing import listing
from engine.sweeps.manifest import axes_of_manifest, cells_of, manifest_of, study_of
from engine.sweeps.request import SweepRequest, sweep_request
from engine.sweeps.running import Sweep, run_jobs
from engine.sweeps.search import chooser_of
from engine.sweeps.states import FAILURES, FINISHED, OK, JobState
from engine.sweeps.study import load_study
from engine.tasks.base import EXIT_OK

MANY = 40  # cells whose check takes some seconds


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
    study = load_study(request.study, request.settings, request.group)
    axes = axes_of(study, request.overrides)
    chooser = chooser_of(axes, study.config)
    lines = [*chooser.first(axes), *extra_lines(axes, study.config.extra)]
    if len(lines) > MANY:
        print(f"checking {len(lines)} cells", file=err, flush=True)
    varying = chooser.varying(axes, lines)
    cells = judged(lines, varying)
    chooser.require_one(cells)
    todo = tuple(cell for cell in cells if cell.verdict == OK)
    if dry_run:
        print(listing(cells, {}, todo, chooser.trials), file=out)
        return EXIT_OK
    folder = SweepFolder.create(plan.folder)
    with folder.locked():
        folder.write_manifest(manifest_of(arguments, study, axes, cells, varying or ()))
        return run_jobs(Sweep(study, cells, todo, len(todo), chooser, plan, folder), out, err)


def _go_on(
    request: SweepRequest, directory: str, plan: LaunchPlan, dry_run: bool, out: TextIO, err: TextIO
) -> int:
    folder = SweepFolder.open(directory)
    manifest = folder.manifest()
    study, cells = study_of(manifest, request.settings), cells_of(manifest)
    chooser = chooser_of(axes_of_manifest(manifest), study.config)
    known = int(manifest.get("known", len(cells)))
    if dry_run:
        todo = _open(cells, folder, request.retry)
        print(listing(cells, folder.states(cell.id for cell in cells), todo, chooser.trials), file=out)
        return EXIT_OK
    with folder.locked():
        todo = _open(cells, folder, request.retry)
        _require_same(todo, directory)
        if todo:
            _warn_of_code(cells, folder, err)
        return run_jobs(Sweep(study, cells, todo, known, chooser, plan, folder), out, err)


def _open(cells: Sequence[Cell], folder: SweepFolder, retry: frozenset[str]) -> tuple[Cell, ...]:
    runnable = (cell for cell in cells if cell.verdict == OK)
    return tuple(cell for cell in runnable if _is_open(folder.state(cell.id), retry))


def _is_open(state: JobState | None, retry: frozenset[str]) -> bool:
    """Whether a job is to be run: not finished, and where it failed, asked for."""
    if state is None or state.state in retry:
        return True
    return state.state not in (FINISHED, *FAILURES)


def _warn_of_code(cells: Sequence[Cell], folder: SweepFolder, err: TextIO) -> None:
    """Rows of two versions of the code are no comparison, even where configs are the same."""
    other = of_other_code(folder.job(cell.id) for cell in cells if cell.verdict == OK)
    if other:
        print(
            f"warning: {len(other)} jobs of this sweep ran on other code than today's "
            f"({other[0].name}, ...): their rows and the new ones are no comparison; start a new sweep",
            file=err,
            flush=True,
        )


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
