"""The same cells in several sweeps: which figures differ beyond the noise, which cells changed their state.

Knows rows and their repeats; why two machines or commits differ it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.report.figures import ITL, SPEED, TTFT, Figure
from engine.report.marks import mark_of
from engine.report.provenance import provenance
from engine.report.rows import Row, Sweep
from engine.report.stats import Ratio, adjusted, ratio

JUDGED = (SPEED, TTFT, ITL)
ALPHA = 0.05  # for all comparisons of a report together
FLOOR = 0.02  # smaller differences are never flagged: two processes of one build differ by as much


@dataclass(frozen=True)
class Change:
    """One figure of one cell, in two sweeps. ratio: after over before. p: of "no difference", adjusted for
    all comparisons; None where there are too few repeats to judge. flagged: beyond the noise."""

    figure: Figure
    before: Row
    after: Row
    ratio: Ratio
    p: float | None = None
    verdict: str = "not judged: fewer than three repeats"
    mark: str = ""

    @property
    def flagged(self) -> bool:
        return self.verdict in ("better", "worse")


@dataclass(frozen=True)
class Comparison:
    """The first sweep against another one. moved: cells that finished in one of them only. lonely: cells that
    the other sweep does not have. facts: name -> (then, now) of code, versions and machine."""

    before: Sweep
    after: Sweep
    changes: Sequence[Change]
    moved: Sequence[tuple[Row, Row]]
    lonely: Sequence[Row]
    facts: Mapping[str, tuple[str, str]]


def compare(sweeps: Sequence[Sweep]) -> list[Comparison]:
    """Every sweep but the first, against the first."""
    return [_compare(sweeps[0], other) for other in sweeps[1:]]


def _compare(before: Sweep, after: Sweep) -> Comparison:
    pairs = list(_pairs(before.rows, after.rows))
    paired = {row.number for pair in pairs for row in pair}
    changes = [change for a, b in pairs if a.measured and b.measured for change in _changes(a, b)]
    return Comparison(
        before=before,
        after=after,
        changes=_judged(changes),
        moved=[(a, b) for a, b in pairs if a.state is not b.state],
        lonely=[row for row in (*before.rows, *after.rows) if row.number not in paired],
        facts=_facts(before, after),
    )


def _pairs(before: Sequence[Row], after: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """Equal configs; where a commit has changed what a config holds, equal command lines."""
    ids = {row.id: row for row in after}
    lines = {tuple(sorted(row.overrides)): row for row in after}
    for row in before:
        other = ids.get(row.id) or lines.get(tuple(sorted(row.overrides)))
        if other is not None:
            yield row, other


def _changes(before: Row, after: Row) -> Iterator[Change]:
    for figure in JUDGED:
        found = ratio(figure.repeats(after.result), figure.repeats(before.result))
        if found is not None:
            mark = mark_of(after) or mark_of(before)
            yield Change(figure, before, after, found, mark=mark)


def _judged(changes: Sequence[Change]) -> list[Change]:
    judged = [change for change in changes if change.ratio.p is not None]
    values = iter(adjusted([change.ratio.p for change in judged if change.ratio.p is not None]))
    return [change if change.ratio.p is None else _with_verdict(change, next(values)) for change in changes]


def _with_verdict(change: Change, p: float) -> Change:
    value = change.ratio.value
    if p >= ALPHA or max(value, 1 / value) < 1 + FLOOR:
        return replace(change, p=p, verdict="within the noise")
    gained = (value > 1) == (change.figure.better > 0)
    return replace(change, p=p, verdict="better" if gained else "worse")


def _facts(before: Sweep, after: Sweep) -> dict[str, tuple[str, str]]:
    then, now = provenance(before), provenance(after)
    names = dict.fromkeys([*then, *now])
    return {name: pair for name in names if (pair := (then.get(name, "-"), now.get(name, "-")))[0] != pair[1]}
