"""Cells chosen by Optuna from the results so far. Knows keys and their values, not what they mean.

A search repeats itself: with the same seed and the same results it asks for the same cells. So one that was
interrupted goes on by starting over, and finds most of its cells done.
Source: tree-structured Parzen estimator, Bergstra et al. 2011 (NIPS), sec. 4.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engine.errors import UserError
from engine.lazy import lazy_import
from engine.sweeps.axes import Axis, Line, line_of
from engine.sweeps.cells import Cell, judged, require_one
from engine.sweeps.folder import SweepFolder
from engine.sweeps.manifest import cell_row
from engine.sweeps.running import Chooser, Grid, Jobs
from engine.sweeps.states import OK
from engine.sweeps.study import Study

if TYPE_CHECKING:
    import optuna
else:
    optuna = lazy_import("optuna")

LOOKED_AT = 25  # cells, all over the space, before a search in which none can run is refused
ASKED_A_TRIAL = 20  # cells that are asked for, at most, to find one that can run and is new
Trial = Any


class Search(Chooser):
    """Chooses `trials` cells of the space that the axes span, `batch` at a time."""

    def __init__(self, axes: Sequence[Axis], settings: Study.Config, trials: int) -> None:
        if importlib.util.find_spec("optuna") is None:
            raise UserError("sweep.trials needs Optuna: pip install 'syncless[search]'")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._axes, self._batch, self.trials = axes, settings.batch, trials
        self._study = optuna.create_study(
            direction="minimize" if settings.better == "lower" else "maximize",
            sampler=optuna.samplers.TPESampler(
                seed=settings.seed, n_startup_trials=max(2, min(10, trials // 3))
            ),
        )
        self._chosen: dict[str, Cell] = {}

    def first(self, axes: Sequence[Axis]) -> list[Line]:
        return []

    def varying(self, axes: Sequence[Axis], lines: Sequence[Line]) -> list[str]:
        """What is searched, and what the other lines set differently."""
        fixed = {axis.line(axis.values[0]) for axis in axes if axis.fixed}
        searched = [axis.key for axis in axes if not axis.fixed]
        others = [override for line in lines for override in line.overrides if override not in fixed]
        return list(dict.fromkeys([*searched, *(override.partition("=")[0] for override in others)]))

    def require_one(self, cells: Sequence[Cell]) -> None:
        """Looks at cells all over the space until one can run."""
        seen: list[Cell] = []
        size = combinations(self._axes)
        for at in range(0, size, max(1, size // LOOKED_AT)):
            seen += judged([_nth(self._axes, at)], [])
            if seen[-1].verdict == OK:
                return
        require_one(seen)

    def run(self, jobs: Jobs) -> bool:
        """Ask, run, tell, until there are enough jobs; whether all came to an end."""
        for _ in range(math.ceil(ASKED_A_TRIAL * self.trials / self._batch)):
            if self._runnable() >= self.trials:
                break
            manifest = jobs.folder.manifest()
            asked = self._ask(manifest["varying"])
            self._write_down(jobs.folder, manifest, [cell for _, cell in asked])
            todo = {c.id: c for _, c in asked if c.verdict == OK and jobs.folder.state(c.id) is None}
            if not jobs.run(list(todo.values())) or jobs.folder.wish():
                return False
            for trial, cell in asked:
                self._tell(trial, jobs.value(cell))
        return True

    def _runnable(self) -> int:
        return sum(cell.verdict == OK for cell in self._chosen.values())

    def _ask(self, varying: Sequence[str]) -> list[tuple[Trial, Cell]]:
        size = min(self._batch, self.trials - self._runnable())
        trials = [self._study.ask() for _ in range(size)]
        lines = [line_of([axis.line(_suggested(trial, axis)) for axis in self._axes]) for trial in trials]
        found = [judged([line], varying)[0] for line in lines]
        return list(zip(trials, found, strict=True))

    def _write_down(self, folder: SweepFolder, manifest: dict[str, Any], cells: Sequence[Cell]) -> None:
        """In the manifest before they run."""
        known = {row["id"] for row in manifest["cells"]}
        self._chosen |= {cell.id: cell for cell in cells}
        rows = [cell_row(cell) for cell in {c.id: c for c in cells}.values() if cell.id not in known]
        folder.write_manifest({**manifest, "cells": [*manifest["cells"], *rows]})

    def _tell(self, trial: Trial, value: float | None) -> None:
        """A cell that cannot run or gave no figure is a bad place: the sampler is told that it was pruned."""
        if value is None:
            self._study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            self._study.tell(trial, value)


def chooser_of(axes: Sequence[Axis], settings: Study.Config) -> Chooser:
    """A search where fewer cells are asked for than there are, else the whole grid."""
    if settings.trials is None or combinations(axes) <= settings.trials:
        return Grid()
    return Search(axes, settings, settings.trials)


def combinations(axes: Sequence[Axis]) -> int:
    """Cells of the whole space."""
    return math.prod(len(axis.values) for axis in axes)


def _nth(axes: Sequence[Axis], at: int) -> Line:
    """The combination at a place of the grid; the last axis changes fastest."""
    overrides = []
    for axis in reversed(axes):
        at, place = divmod(at, len(axis.values))
        overrides.append(axis.line(axis.values[place]))
    return line_of(overrides[::-1])


def _suggested(trial: Trial, axis: Axis) -> str:
    """By its place where the values are numbers in order, so that the sampler knows which are near."""
    if axis.fixed:
        return axis.values[0]
    if _ordered(axis.values):
        place: int = trial.suggest_int(axis.key, 0, len(axis.values) - 1)
        return axis.values[place]
    return str(trial.suggest_categorical(axis.key, axis.values))


def _ordered(values: Sequence[str]) -> bool:
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return False
    return numbers == sorted(numbers)
