"""The values a report is made of: a row for each cell, a sweep for each folder.

Plain data: knows no file format and computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


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

    def value(self, key: str) -> Any:
        """What the cell chose for a key; None where the key does not exist for it."""
        return self.varied.get(key, self.choices.get(key))


@dataclass(frozen=True)
class Sweep:
    """One folder, or several single runs together. path: the folder. baseline: overrides that name the cells
    to compare with; None: nobody chose. created, study, command: of the manifest."""

    path: Path
    rows: Sequence[Row]
    baseline: Sequence[str] | None = None
    created: str | None = None
    study: str | None = None
    command: Sequence[str] = ()

    @property
    def name(self) -> str:
        return self.path.name or str(self.path)
