"""The values a report is made of: a row for each cell, a sweep for each folder.

Plain data: knows no file format and no figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from engine.report.keys import parsed
from engine.report.numbers import word


class State(StrEnum):
    """How a cell stands. The value is the word that people read."""

    FINISHED = "finished"
    FAILED = "failed"
    KILLED = "killed"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out of memory"
    INTERRUPTED = "interrupted"
    REJECTED = "rejected"
    UNFINISHED = "unfinished"  # its folder exists, nobody has said how the job ended
    WAITING = "waiting"


@dataclass(frozen=True)
class Row:
    """One cell. number: from 1, its place in the report. source: place of its sweep in the report, from 0.
    id: equal for equal configs, in any sweep. choices: group -> option. varied: what differs between the
    cells. result and facts: result.json and run.json, empty where there are none. path: its run folder."""

    number: int
    source: int
    id: str
    overrides: Sequence[str]
    choices: Mapping[str, Any]
    varied: Mapping[str, Any]
    state: State
    reason: str | None = None
    seconds: float | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None

    @property
    def measured(self) -> bool:
        """Whether there are figures of a run that came to its end."""
        return self.state is State.FINISHED and bool(self.result)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All that the cell is known to have chosen; what varies comes first, a key it lacks is not there."""
        return {**self.varied, **parsed(self.overrides), **self.choices, **self.varied}

    @cached_property
    def words(self) -> dict[str, str]:
        """The settings as texts that are equal for equal choices, however they were typed."""
        return {key: word(value) for key, value in self.settings.items()}


@dataclass(frozen=True)
class Sweep:
    """One folder, or several single runs together. path: the folder. baseline: overrides that name the cells
    to compare with; None: nobody chose. figure: what cells are compared by, dotted in result.json; None: the
    task's own. lower: less of it is better. created, study, command: of the manifest."""

    path: Path
    rows: Sequence[Row]
    baseline: Sequence[str] | None = None
    figure: str | None = None
    lower: bool = False
    created: str | None = None
    study: str | None = None
    command: Sequence[str] = ()

    @property
    def name(self) -> str:
        return self.path.name or str(self.path)
