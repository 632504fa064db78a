"""The values of which the page's tables consist, as text: the template only places them. Knows no HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """number: right-aligned, sorts by value. better: 1 best rows have the largest, -1 the smallest."""

    label: str
    unit: str = ""
    number: bool = False
    better: int = 0

    @property
    def title(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label


@dataclass(frozen=True)
class Cell:
    """sort: what the column is sorted by, "" is last. small: a second line. mark: a claim beside the text.
    chips: (key, value) pairs instead of a text."""

    text: str
    sort: str = ""
    small: str = ""
    mark: str = ""
    chips: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Plain:
    """A small table. name: what it is, for those who do not see it. flagged: places of rows."""

    name: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    flagged: frozenset[int] = frozenset()
