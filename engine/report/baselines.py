"""Which row a row is compared with: the cell that is equal in all but the baseline's keys.

Knows choices; computes no figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.report.rows import Row, Sweep
from engine.report.settings import SEED, belongs, differing, is_work, parsed, root, same, settings

ABSENT = object()


@dataclass(frozen=True)
class Baseline:
    """values: what the compared-with rows chose. keys: in which the sweep's rows differ."""

    values: Mapping[str, Any]
    keys: Sequence[str]

    def row_for(self, row: Row, rows: Sequence[Row], *, any_seed: bool = False) -> Row | None:
        """The first row that chose the baseline's values and did the same work in the same way otherwise.
        any_seed: whatever its seed."""
        wanted = settings(row)
        held = [key for key in self.keys if not self._replaced(key) and not (any_seed and key == SEED)]
        for other in rows:
            own = settings(other)
            if self.chosen_by(other) and all(
                same(own.get(key, ABSENT), wanted.get(key, ABSENT)) for key in held
            ):
                return other
        return None

    def chosen_by(self, row: Row) -> bool:
        """Whether the row chose the baseline's values."""
        own = settings(row)
        return all(same(own.get(key, ABSENT), value) for key, value in self.values.items())

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
    own = settings(first)
    return {key: own[key] for key in groups or how if key in own}
