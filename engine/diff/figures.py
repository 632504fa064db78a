"""The figures of two results side by side, and which of them differ by more than the repeats do.

Knows numbers under names; not what any of them means.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.report.stats import LEVEL, Ratio, adjusted, ratio

LEFT_OUT = ("runs", "metrics", "seed", "first_token_at")  # repeats, raw counters, a setting, a moment
Node = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """One number of both results; where a result has repeats, their geometric mean. ratio: the second over
    the first, with an interval where both have three repeats; None where a side has none or is not positive.
    beyond: whether the difference is more than noise, None where nothing tells."""

    name: str
    first: float | None
    second: float | None
    ratio: Ratio | None
    beyond: bool | None

    def row(self) -> dict[str, Any]:
        """Plain data for JSON."""
        r = self.ratio
        return {
            "name": self.name,
            "first": self.first,
            "second": self.second,
            "change": None if r is None else r.value - 1,
            "interval": None if r is None or r.low is None or r.high is None else [r.low - 1, r.high - 1],
            "beyond_noise": self.beyond,
        }


def figures(first: Node, second: Node) -> list[Figure]:
    """Every figure that differs, in the order of the first result; those of only one side come last.

    A difference is beyond the noise where its p value, adjusted for all of them together, says so: of many
    figures some always lie apart by chance.
    """
    a, b = dict(_numbers(first)), dict(_numbers(second))
    names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    names.sort(key=lambda name: name not in a or name not in b)
    sides = {name: (_values(first, name, a), _values(second, name, b)) for name in names}
    ratios = {name: _ratio(*sides[name]) for name in names}
    known = [name for name in names if (found := ratios[name]) is not None and found.p is not None]
    judged = dict(zip(known, adjusted([_p(ratios[name]) for name in known]), strict=True))
    return [
        Figure(
            name, _middle(sides[name][0]), _middle(sides[name][1]), ratios[name], _beyond(judged.get(name))
        )
        for name in names
    ]


def _p(found: Ratio | None) -> float:
    return 1.0 if found is None or found.p is None else found.p


def _beyond(p: float | None) -> bool | None:
    return None if p is None else p < 1 - LEVEL


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio | None:
    return ratio(theirs, ours) if ours and theirs and min(*ours, *theirs) > 0 else None


def _middle(values: Sequence[float]) -> float | None:
    """Of repeats, what their ratio is about."""
    if len(values) < 2 or min(values) <= 0:
        return values[0] if values else None
    return statistics.geometric_mean(values)


def _values(result: Node, name: str, known: Mapping[str, float]) -> list[float]:
    """The figure in each of the result's runs; without such, the result's own."""
    runs = result.get("runs")
    each = [dict(_numbers(run)).get(name) for run in runs] if isinstance(runs, list) else []
    found = [value for value in each if value is not None]
    return found or ([known[name]] if name in known else [])


def _numbers(node: Node, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Dotted names and values of all numbers."""
    for key, value in node.items():
        if key in LEFT_OUT:
            continue
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{key}", value
