"""What page and summary say of several sweeps, as text. Knows no HTML and no Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from engine.report.comparing import FLOOR, Change, Comparison, compare, provenance
from engine.report.numbers import number, times
from engine.report.settings import label
from engine.report.study import Study, letter


@dataclass(frozen=True)
class ChangeView:
    """A line of a comparison."""

    name: str
    figure: str
    then: str
    now: str
    ratio: str
    verdict: str
    flagged: bool
    mark: str


@dataclass(frozen=True)
class ComparisonView:
    """before, after: letters of the sweeps. facts: (name, then, now). moved: a sentence each."""

    title: str
    sentence: str
    before: str
    after: str
    facts: Sequence[tuple[str, str, str]]
    changes: Sequence[ChangeView]
    moved: Sequence[str]


def comparison_views(study: Study) -> list[ComparisonView]:
    """Every sweep against the first; nothing for a single one. Flagged differences come first."""
    return [_view(study, place, found) for place, found in enumerate(compare(study.sweeps), 1)]


def sweep_views(study: Study) -> list[dict[str, str | int]]:
    """One line a sweep: where it ran and how much of it is done."""
    return [
        {
            "letter": letter(place),
            "name": sweep.name,
            "created": sweep.created or "-",
            "commit": provenance(sweep).get("commit", "-"),
            "device": provenance(sweep).get("device", "-"),
            "finished": sum(row.measured for row in sweep.rows),
            "cells": len(sweep.rows),
        }
        for place, sweep in enumerate(study.sweeps)
    ]


def _view(study: Study, place: int, found: Comparison) -> ComparisonView:
    order = {"worse": 0, "better": 1}
    changes = sorted(found.changes, key=lambda change: order.get(change.verdict, 2))
    return ComparisonView(
        title=f"{letter(place)} against {letter(0)}",
        sentence=_sentence(found),
        before=letter(0),
        after=letter(place),
        facts=[(name, then, now) for name, (then, now) in found.facts.items()],
        changes=[_change(study, change) for change in changes],
        moved=[
            f"{label(b, study.keys)}: {a.state}, now {b.state}" + (f" ({b.reason})" if b.reason else "")
            for a, b in found.moved
        ],
    )


def _sentence(found: Comparison) -> str:
    counts = Counter(change.verdict for change in found.changes)
    said = ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common()) or "no cell finished in both"
    lonely = f" {len(found.lonely)} cells are in one of them only." if found.lonely else ""
    return (
        f"Figures of cells with the same configuration: {said}. Better or worse: beyond the noise of the repeats "
        f"(Welch's t on logarithms, Holm's correction over all comparisons, 5%) and by at least {FLOOR:.0%}.{lonely}"
    )


def _change(study: Study, change: Change) -> ChangeView:
    figure = change.figure
    return ChangeView(
        name=label(change.after, study.keys),
        figure=figure.title,
        then=number(figure.value(change.before.result)),
        now=number(figure.value(change.after.result)),
        ratio=times(change.ratio),
        verdict=change.verdict,
        flagged=change.flagged,
        mark=change.mark,
    )
