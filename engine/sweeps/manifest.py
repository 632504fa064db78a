"""sweep.json: the cells of a sweep as they were judged, written before the first job. Knows its form only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from engine.errors import UserError
from engine.sweeps.axes import Axis
from engine.sweeps.cells import Cell
from engine.sweeps.states import OK
from engine.sweeps.study import Study, study_from

VERSION = 1
COMMAND = ("python", "-m", "engine", "-m")
SETTINGS = ("timeout", "fail_fast", "strict", "figure", "better", "trials", "batch", "seed")


def manifest_of(
    arguments: Sequence[str],
    study: Study,
    axes: Sequence[Axis],
    cells: Sequence[Cell],
    varying: Sequence[str] = (),
) -> dict[str, Any]:
    """The document. arguments: overrides of the command line that starts the same sweep again. axes,
    varying: what a search chooses from, and the keys that tell its cells apart. Configs are not in it: the
    run folders hold them."""
    baseline = study.config.baseline
    return {
        "version": VERSION,
        "created": datetime.now().astimezone().isoformat(timespec="milliseconds"),
        "command": [*COMMAND, *arguments],
        "study": study.name,
        "baseline": None if baseline is None else list(baseline),
        "settings": {name: getattr(study.config, name) for name in SETTINGS},
        "known": sum(cell.verdict == OK for cell in cells),
        "varying": list(varying),
        "axes": [[axis.key, list(axis.values)] for axis in axes],
        "cells": [cell_row(cell) for cell in cells],
    }


def cell_row(cell: Cell) -> dict[str, Any]:
    return {
        "id": cell.id,
        "overrides": list(cell.overrides),
        "choices": dict(cell.choices),
        "varied": dict(cell.varied),
        "verdict": cell.verdict,
        "reason": cell.reason,
        "duplicates": [list(overrides) for overrides in cell.duplicates],
    }


def study_of(manifest: Mapping[str, Any], settings: Sequence[str]) -> Study:
    """The settings that the sweep was started with, and `sweep.key=value` settings over them."""
    given = manifest.get("settings")
    kept = {name: given[name] for name in SETTINGS if isinstance(given, Mapping) and name in given}
    return study_from(kept, manifest.get("study"), settings)


def cells_of(manifest: Mapping[str, Any]) -> tuple[Cell, ...]:
    """The cells of a manifest, without their configs. UserError for one of another version or form."""
    if manifest.get("version") != VERSION:
        raise UserError(
            f"this sweep was started by another version of Syncless (sweep.json: {manifest.get('version')}, "
            f"this one reads {VERSION}): resume it with that one, or start it again"
        )
    try:
        return tuple(_cell(row) for row in manifest["cells"])
    except (KeyError, TypeError) as error:
        raise UserError(f"sweep.json is damaged ({error}): start the sweep again") from error


def axes_of_manifest(manifest: Mapping[str, Any]) -> list[Axis]:
    """What a search chooses from. UserError where the manifest does not say."""
    try:
        return [Axis(str(key), tuple(values)) for key, values in manifest["axes"]]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"sweep.json is damaged ({error}): start the sweep again") from error


def _cell(row: Mapping[str, Any]) -> Cell:
    return Cell(
        str(row["id"]),
        tuple(row["overrides"]),
        dict(row["choices"]),
        dict(row["varied"]),
        str(row["verdict"]),
        row["reason"],
        tuple(tuple(overrides) for overrides in row.get("duplicates", ())),
    )
