"""Reads two run folders and finds what differs. Prints nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.diff.figures import Figure, figures
from engine.replay.changes import Change, Stack, stack_changes
from engine.replay.course import COURSE, Line, read_course
from engine.replay.follow import Recorded
from engine.replay.outputs import Compared, compare_outputs, read_outputs
from engine.runs import RESULT, WORKLOAD, read_lines
from engine.snapshot import Snapshot, changed_keys, value_at

UNKNOWN = "not recorded by both"


@dataclass(frozen=True)
class Difference:
    """settings, stack: name -> (first, second). batches: None where the courses are the same, else where they
    part, or why nobody knows. prompts: numbers of requests that ask something else. compared: the answers."""

    first: Snapshot
    second: Snapshot
    settings: Mapping[str, Change]
    stack: Mapping[str, Change]
    batches: str | None
    prompts: tuple[int, ...]
    compared: Compared
    figures: tuple[Figure, ...]

    @property
    def found(self) -> bool:
        """Whether the runs differ in anything that two runs of one command share, or in speed beyond the
        noise. Not in batches alone: they change no answer that is the same."""
        apart = self.settings or self.stack or self.prompts or self.compared.differences
        return bool(apart) or any(figure.beyond for figure in self.figures)

    def document(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "first": str(self.first.path),
            "second": str(self.second.path),
            "differ": self.found,
            "settings": {key: list(change) for key, change in self.settings.items()},
            "stack": {key: list(change) for key, change in self.stack.items()},
            "batches": self.batches,
            "prompts": list(self.prompts),
            "answers": self.compared.answers,
            "tokens": self.compared.tokens,
            "differences": [dict(difference) for difference in self.compared.differences],
            "figures": [figure.row() for figure in self.figures],
        }


def compare(first: str | Path, second: str | Path) -> Difference:
    """UserError for a folder that is no run's."""
    a, b = Snapshot.read(first), Snapshot.read(second)
    keys = changed_keys(a.config, b.config)
    return Difference(
        a,
        b,
        {key: (value_at(a.config, key), value_at(b.config, key)) for key in keys},
        stack_changes(Stack.of(a.path, a.facts), Stack.of(b.path, b.facts)),
        batches_apart(a.path / COURSE, b.path / COURSE),
        _other_prompts(a.path, b.path),
        compare_outputs(read_outputs(a.path), read_outputs(b.path)),
        tuple(figures(_result(a.path), _result(b.path))),
    )


def batches_apart(first: Path, second: Path) -> str | None:
    """Where the courses of two first engines part, the second's view; None: nowhere."""
    try:
        a, b = read_course(first), read_course(second)
    except (OSError, ValueError):
        return UNKNOWN
    return _parting(a, b)


def _parting(first: list[Line], second: list[Line]) -> str | None:
    guide, times = Recorded(first), 0
    for line in second:
        most = guide.begins(line.entry.head(), times)
        times = line.times
        if times > most:
            guide.exceeded()
    if guide.following:
        return f"after step {guide.steps}: the second ends there"
    return guide.parted


def _other_prompts(first: Path, second: Path) -> tuple[int, ...]:
    """Numbers, from 0, of the requests that both runs have and that are not the same."""
    a, b = (read_lines(path / WORKLOAD) if (path / WORKLOAD).is_file() else [] for path in (first, second))
    asked = ([{**row, "at": None} for row in rows] for rows in (a, b))
    return tuple(number for number, (one, other) in enumerate(zip(*asked, strict=False)) if one != other)


def _result(folder: Path) -> dict[str, Any]:
    """result.json; empty where the run left none."""
    try:
        found = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
