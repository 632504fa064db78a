"""Sweep folders and single run folders as values. Copes with half-finished sweeps and torn files.

Importable without torch. Knows the folder's form, not what the figures mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.errors import UserError
from engine.report.rows import Row, State, Sweep
from engine.report.single_runs import read_single
from engine.runs import RESULT, RUN

MANIFEST, JOBS, JOB = "sweep.json", "jobs", "job.json"
VERSION = 1


def read_all(directories: Sequence[Path]) -> list[Sweep]:
    """The sweeps of `directories`, in their order; single run folders among them form sweeps of their own,
    behind the others. Rows are numbered through. UserError for a folder that is neither."""
    if not directories:
        raise UserError("no folder given: name the folder of a sweep or of a run")
    singles = [path for path in directories if not (path / MANIFEST).is_file()]
    sweeps = [read_sweep(path) for path in directories if (path / MANIFEST).is_file()]
    sweeps += read_single(singles)
    return _numbered(sweeps)


def read_sweep(path: Path) -> Sweep:
    """One sweep folder. A cell whose files are missing or torn is a row that says so."""
    manifest = _manifest(path)
    rows = [_row(path, cell) for cell in manifest["cells"]]
    settings = manifest.get("settings") or {}
    return Sweep(
        path=path,
        rows=rows,
        baseline=manifest.get("baseline"),
        figure=settings.get("figure"),
        lower=settings.get("better") == "lower",
        created=manifest.get("created"),
        study=manifest.get("study"),
        command=manifest.get("command") or (),
    )


def _manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    manifest = _json(file)
    if manifest is None or not isinstance(manifest.get("cells"), list):
        raise UserError(f"{file} is damaged: it is no list of a sweep's cells; start the sweep again")
    if manifest.get("version") != VERSION:
        found = manifest.get("version")
        raise UserError(f"{file} has version {found}, this version of Syncless reads {VERSION}: update it")
    return manifest


def _row(path: Path, cell: Mapping[str, Any]) -> Row:
    row = Row(
        number=0,
        source=0,
        id=str(cell["id"]),
        overrides=tuple(cell.get("overrides") or ()),
        choices=cell.get("choices") or {},
        varied=cell.get("varied") or {},
        state=State.WAITING,
        reason=cell.get("reason"),
    )
    if cell.get("verdict") == "rejected":
        return replace(row, state=State.REJECTED)
    return with_job(row, path / JOBS / row.id)


def with_job(row: Row, folder: Path) -> Row:
    """The row with what its job's folder holds."""
    if not folder.is_dir():
        return row
    job, result = _json(folder / JOB), _json(folder / RESULT)
    state = State.UNFINISHED if job is None else _state(job.get("state"))
    reason = None if job is None else job.get("reason")
    if state is State.FINISHED and result is None:
        state, reason = State.FAILED, f"its {RESULT} is missing or damaged"
    return replace(
        row,
        state=state,
        reason=reason,
        seconds=None if job is None else job.get("seconds"),
        result=result or {},
        facts=_json(folder / RUN) or {},
        path=folder,
    )


def _state(name: Any) -> State:
    try:
        return State(str(name).replace("_", " "))
    except ValueError:
        return State.UNFINISHED


def _json(file: Path) -> dict[str, Any] | None:
    """The object in a file; None where it is missing, torn or something else."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _numbered(sweeps: Iterable[Sweep]) -> list[Sweep]:
    numbered, count = [], 0
    for source, sweep in enumerate(sweeps):
        rows = [replace(row, number=count + n, source=source) for n, row in enumerate(sweep.rows, 1)]
        count += len(rows)
        numbered.append(replace(sweep, rows=rows))
    return numbered
