"""Speed-ups over the baseline, and what each option is worth with everything else equal.

Knows rows and their repeats; draws and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from engine.report.baselines import ABSENT, Baseline
from engine.report.figures import SPEED
from engine.report.marks import mark_of
from engine.report.rows import Row
from engine.report.settings import SEED, belongs, is_work, same, settings
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
    found = {}
    for row in measured:
        base = baseline.row_for(row, measured)
        own = None if base is None or base is row else _speedup(row, base, measured, baseline)
        if own is not None:
            found[row.number] = own
    return found


def effects(rows: Sequence[Row], baseline: Baseline) -> list[Effect]:
    """Every option that varies, against the baseline's or else the first; settings of the work left out."""
    measured = [row for row in rows if row.measured]
    found = []
    for key in (key for key in baseline.keys if not is_work(key)):
        values = _values(measured, key)
        instead = next((v for v in values if same(v, baseline.values.get(key, ABSENT))), None)
        instead = values[0] if instead is None and values else instead
        others = [value for value in values if not same(value, instead)]
        found += [effect for value in others for effect in _effect(measured, baseline, key, value, instead)]
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
    for other in measured:
        if _equal_but(row, other, baseline.keys, SEED):
            base = baseline.row_for(other, measured)
            if base is not None and _speed(other) > 0 and _speed(base) > 0:
                yield other, base


def _effect(
    measured: Sequence[Row], baseline: Baseline, key: str, value: Any, instead: Any
) -> Iterator[Effect]:
    pairs = [
        (row, base)
        for row in measured
        for base in measured
        if same(settings(row).get(key, ABSENT), value)
        and same(settings(base).get(key, ABSENT), instead)
        and _equal_but(row, base, baseline.keys, key)
    ]
    found = paired_ratio([(_speed(row), _speed(base)) for row, base in pairs])
    if found is not None:
        mark = next(filter(None, (_marks(row, base) for row, base in pairs)), "")
        yield Effect(key, value, instead, found, mark)


def _equal_but(a: Row, b: Row, keys: Sequence[str], but: str) -> bool:
    """Whether two rows chose alike in everything but one key and what belongs to it."""
    ours, theirs = settings(a), settings(b)
    held = (key for key in keys if key != but and not belongs(key, but))
    return all(same(ours.get(key, ABSENT), theirs.get(key, ABSENT)) for key in held)


def _values(rows: Sequence[Row], key: str) -> list[Any]:
    found: list[Any] = []
    for row in rows:
        value = settings(row).get(key, ABSENT)
        if value is not ABSENT and not any(same(value, other) for other in found):
            found.append(value)
    return found


def _speed(row: Row) -> float:
    value = SPEED.value(row.result)
    return float(value) if isinstance(value, int | float) else 0.0


def _marks(row: Row, base: Row) -> str:
    """A comparison is as good as the worse of its sides."""
    return mark_of(row) or mark_of(base)
