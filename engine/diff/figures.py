"""The figures of two results side by side, and which of them differ by more than the repeats do.

Knows numbers under names; not what any of them means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.report.stats import LEVEL, Ratio, adjusted, ratio

LEFT_OUT = ("runs", "metrics", "seed", "first_token_at")  # repeats, raw counters, a setting, a moment
Node = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """One number of both results. ratio: the second over the first, with an interval where both have three
    repeats; None where a side has none or is not positive. beyond: whether the difference is more than noise,
    None where nothing tells."""

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
    ratios = {name: _ratio(first, second, name, a.get(name), b.get(name)) for name in names}
    known = [name for name in names if (found := ratios[name]) is not None and found.p is not None]
    judged = dict(zip(known, adjusted([_p(ratios[name]) for name in known]), strict=True))
    return [Figure(name, a.get(name), b.get(name), ratios[name], _beyond(judged.get(name))) for name in names]


def _p(found: Ratio | None) -> float:
    return 1.0 if found is None or found.p is None else found.p


def _beyond(p: float | None) -> bool | None:
    return None if p is None else p < 1 - LEVEL


def _ratio(first: Node, second: Node, name: str, a: float | None, b: float | None) -> Ratio | None:
    if a is None or b is None:
        return None
    ours, theirs = _repeats(second, name) or [b], _repeats(first, name) or [a]
    if min(*ours, *theirs) <= 0:
        return None
    return ratio(ours, theirs)


def _repeats(result: Node, name: str) -> list[float]:
    """The figure in each of the result's runs."""
    runs = result.get("runs")
    if not isinstance(runs, Sequence):
        return []
    values = (dict(_numbers(run)).get(name) for run in runs if isinstance(run, Mapping))
    return [value for value in values if value is not None]


def _numbers(node: Node, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Dotted names and values of all numbers."""
    for key, value in node.items():
        if key in LEFT_OUT:
            continue
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{key}", value
