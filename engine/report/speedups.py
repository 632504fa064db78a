"""Speed-ups over the baseline, and what each option is worth with everything else equal.

Knows rows and their repeats; draws and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.report.baselines import Baseline
from engine.report.figures import SPEED
from engine.report.keys import SEED, belongs, is_work
from engine.report.marks import mark_of
from engine.report.numbers import word
from engine.report.rows import Row
from engine.report.stats import MIN_REPEATS, Ratio, paired_ratio, ratio


@dataclass(frozen=True)
class Speedup:
    """base: number of the row that was compared with. seeds: how many runs were paired by seed; 0: the
    interval comes from the repeats of both. mark: a claim that must stand beside the number."""

    ratio: Ratio
    base: int
    seeds: int = 0
    mark: str = ""


@dataclass(frozen=True)
class Effect:
    """What choosing `value` instead of `instead` does, over all pairs of rows that are equal otherwise."""

    key: str
    value: Any
    instead: Any
    ratio: Ratio
    mark: str = ""


def speedups(rows: Sequence[Row], baseline: Baseline) -> dict[int, Speedup]:
    """row number -> its speed-up in output tokens/s. Rows without a measured baseline are left out."""
    measured = [row for row in rows if row.measured]
    bases = baseline.bases(measured)
    found = {}
    for row in measured:
        base = bases.get(baseline.place(row))
        own = None if base is None or base is row else _speedup(row, base, measured, baseline)
        if own is not None:
            found[row.number] = own
    return found


def effects(rows: Sequence[Row], baseline: Baseline) -> list[Effect]:
    """Every option that varies, against the baseline's or else the first; settings of the work left out."""
    measured = [row for row in rows if row.measured]
    found: list[Effect] = []
    for key in (key for key in baseline.keys if not is_work(key)):
        values = {row.words[key]: row.settings[key] for row in measured if key in row.words}
        if len(values) > 1:
            first = next(iter(values))
            wanted = word(baseline.values[key]) if key in baseline.values else first
            instead = wanted if wanted in values else first
            found += _effects(measured, baseline.keys, key, values, instead)
    return found


def _speedup(row: Row, base: Row, measured: Sequence[Row], baseline: Baseline) -> Speedup | None:
    mark = _marks(row, base)
    pairs = list(_seed_pairs(row, measured, baseline)) if SEED in baseline.keys else []
    if len(pairs) >= MIN_REPEATS:
        paired = paired_ratio([(_speed(a), _speed(b)) for a, b in pairs])
        return None if paired is None else Speedup(paired, base.number, len(pairs), mark)
    found = ratio(SPEED.repeats(row.result), SPEED.repeats(base.result))
    return None if found is None else Speedup(found, base.number, mark=mark)


def _seed_pairs(row: Row, measured: Sequence[Row], baseline: Baseline) -> Iterator[tuple[Row, Row]]:
    """The row's runs with other seeds, each with the baseline of its own seed."""
    held, bases = [key for key in baseline.keys if key != SEED], baseline.bases(measured)
    for other in measured:
        base = bases.get(baseline.place(other)) if _place(other, held) == _place(row, held) else None
        if base is not None and _speed(other) > 0 and _speed(base) > 0:
            yield other, base


def _effects(
    measured: Sequence[Row], keys: Sequence[str], key: str, values: Mapping[str, Any], instead: str
) -> Iterator[Effect]:
    """The values of one key against `instead`. values: by word."""
    held = [other for other in keys if other != key and not belongs(other, key)]
    bases = {_place(row, held): row for row in measured if row.words.get(key) == instead}
    for value in (value for value in values if value != instead):
        rows = [row for row in measured if row.words.get(key) == value and _place(row, held) in bases]
        pairs = [(row, bases[_place(row, held)]) for row in rows]
        found = paired_ratio([(_speed(row), _speed(base)) for row, base in pairs])
        if found is not None:
            mark = next(filter(None, (_marks(row, base) for row, base in pairs)), "")
            yield Effect(key, values[value], values[instead], found, mark)


def _place(row: Row, keys: Sequence[str]) -> tuple[str | None, ...]:
    """What a row chose for the keys: rows with equal places are equal in them."""
    return tuple(row.words.get(key) for key in keys)


def _speed(row: Row) -> float:
    return max(SPEED.number(row.result) or 0.0, 0.0)


def _marks(row: Row, base: Row) -> str:
    """A comparison is as good as the worse of its sides."""
    return mark_of(row) or mark_of(base)
