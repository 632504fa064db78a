"""The verdict of a replay: as replay.json, and as lines for a person. Runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.replay.changes import Change, shown
from engine.replay.outputs import Compared, place_of

MOST_SHOWN = 10


@dataclass(frozen=True)
class Verdict:
    """compared: the answers. courses: of the engines, see engines.Held. changes: of the stack. settings: what
    new overrides changed, key -> (then, now). unknown: settings that the snapshot did not know."""

    compared: Compared
    courses: Sequence[Mapping[str, Any]]
    changes: Mapping[str, Change]
    settings: Mapping[str, Change]
    unknown: Sequence[str]

    @property
    def identical(self) -> bool:
        """No answer differs; where none could be compared, the course has to agree to its end."""
        held = all(course["recorded"] and course["parted"] is None for course in self.courses)
        return not self.compared.differences and (self.compared.answers > 0 or held)

    def document(self) -> dict[str, Any]:
        """For replay.json."""
        return {
            "identical": self.identical,
            "answers": self.compared.answers,
            "tokens": self.compared.tokens,
            "left_out": self.compared.left_out,
            "differences": [dict(difference) for difference in self.compared.differences],
            "courses": [dict(course) for course in self.courses],
            "changed": {name: list(change) for name, change in self.changes.items()},
            "settings": {name: list(change) for name, change in self.settings.items()},
            "new_settings": list(self.unknown),
        }

    def lines(self) -> list[str]:
        """For a person: the verdict first, then what it may be due to."""
        answers, found = self.compared.answers, self.compared.differences
        word = "identical" if self.identical else "DIFFERENT"
        lines = [
            f"{word}: {answers - len(found)} of {answers} answers are the same, {self.compared.tokens} tokens"
        ]
        if self.compared.left_out:
            lines.append(f"  {self.compared.left_out} answers were not reached again: the run was stopped")
        lines += [f"  {_told(difference)}" for difference in found[:MOST_SHOWN]]
        lines += [f"  and {len(found) - MOST_SHOWN} more"] if len(found) > MOST_SHOWN else []
        lines += [f"  {_course(course)}" for course in self.courses]
        lines += [f"  set anew: {name}: {a} -> {b}" for name, (a, b) in self.settings.items()]
        lines += [f"  changed: {line}" for line in shown(self.changes)]
        if self.unknown:
            lines.append(f"  new since then, with today's values: {', '.join(self.unknown)}")
        if not self.identical and not self.changes and not self.settings:
            lines.append("  nothing that is recorded differs: code, packages, machine and files are the same")
        return lines


def _told(difference: Mapping[str, Any]) -> str:
    where = f"{place_of(difference)}: {difference['reason']} from token {difference['position']}"
    tokens = difference.get("tokens")
    return where if tokens is None else f"{where} ({tokens[0]} -> {tokens[1]})"


def _course(course: Mapping[str, Any]) -> str:
    file, steps, parted = course["file"], course["recorded"], course["parted"]
    if steps is None:
        return f"batches: {parted}"
    if parted is None:
        return f"batches: as recorded, {steps} steps ({file})"
    return f"batches: as recorded for {course['steps']} of {steps} steps; {parted} ({file})"
