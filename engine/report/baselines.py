"""Which row a row is compared with: the cell that is equal in all but the baseline's keys.

Knows choices; computes no figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engine.report.keys import belongs, is_work, parsed, root
from engine.report.numbers import word
from engine.report.rows import Row, Sweep
from engine.report.settings import differing


@dataclass(frozen=True)
class Baseline:
    """values: what the compared-with rows chose. keys: in which the sweep's rows differ."""

    values: Mapping[str, Any]
    keys: Sequence[str]

    @cached_property
    def held(self) -> list[str]:
        """Keys in which a row and its baseline are equal."""
        return [key for key in self.keys if not self._replaced(key)]

    def place(self, row: Row) -> tuple[str | None, ...]:
        """What a row and the row that it is compared with have in common."""
        return tuple(row.words.get(key) for key in self.held)

    def bases(self, rows: Sequence[Row]) -> dict[tuple[str | None, ...], Row]:
        """place -> the first of the rows that chose the baseline's values there."""
        return {self.place(row): row for row in reversed(rows) if self.chosen_by(row)}

    def chosen_by(self, row: Row) -> bool:
        """Whether the row chose the baseline's values."""
        return all(row.words.get(key) == word(value) for key, value in self.values.items())

    def _replaced(self, key: str) -> bool:
        return key in self.values or any(belongs(key, group) for group in self.values)


def baseline_of(sweep: Sweep, chosen: Sequence[str] | None = None) -> Baseline:
    """The baseline that the user chose, else the sweep's own, else the first finished row's options."""
    keys = differing(sweep.rows)
    named = chosen or sweep.baseline
    return Baseline(parsed(named) if named else _default(sweep.rows, keys), keys)


def _default(rows: Sequence[Row], keys: Sequence[str]) -> dict[str, Any]:
    """The options of the first finished row where rows chose several options; where they differ in numbers
    only, its numbers."""
    first = next((row for row in rows if row.measured), None)
    if first is None:
        return {}
    how = [key for key in keys if not is_work(key)]
    groups = [key for key in how if root(key) == key]
    return {key: first.settings[key] for key in groups or how if key in first.settings}
