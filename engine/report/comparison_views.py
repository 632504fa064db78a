"""What page and summary say of several sweeps, as text. Knows no HTML and no Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from engine.report.cells import Cell, Column, Plain
from engine.report.comparing import FLOOR, Change, Comparison, compare
from engine.report.numbers import NOTHING, moment, number, times
from engine.report.provenance import provenance
from engine.report.settings import label
from engine.report.study import Study, letter


@dataclass(frozen=True)
class ComparisonView:
    """facts: code, versions and machine where they differ. flagged, others: figures that differ beyond the
    noise, and the rest. moved: a sentence for each cell that ended
    otherwise."""

    title: str
    sentence: str
    facts: Plain
    flagged: Plain
    others: Plain
    moved: Sequence[str]


def comparison_views(study: Study) -> list[ComparisonView]:
    """Every sweep against the first; nothing for a single one. Flagged differences come first."""
    return [_view(study, place, found) for place, found in enumerate(compare(study.sweeps), 1)]


def sweeps_table(study: Study) -> Plain:
    """Where each sweep ran, and how much of it is done."""
    head = [*map(Column, ("sweep", "folder", "started", "code", "machine")), Column("finished", number=True)]
    rows = []
    for place, sweep in enumerate(study.sweeps):
        facts = provenance(sweep)
        done = f"{sum(row.measured for row in sweep.rows)} of {len(sweep.rows)}"
        code = facts.get("commit") or facts.get("code") or NOTHING
        known = (moment(sweep.created), code, facts.get("machine", NOTHING), done)
        rows.append([*map(Cell, (letter(place), sweep.name, *known))])
    return Plain("Sweeps", head, rows)


def _view(study: Study, place: int, found: Comparison) -> ComparisonView:
    one, other = letter(0), letter(place)
    flagged = sorted((c for c in found.changes if c.flagged), key=lambda change: change.verdict == "better")
    facts = [[*map(Cell, (name, *pair))] for name, pair in found.facts.items()]
    return ComparisonView(
        title=f"{other} against {one}",
        sentence=_sentence(found),
        facts=Plain("Provenance", [*map(Column, ("", one, other))], facts),
        flagged=_changes(study, flagged, one, other),
        others=_changes(study, [change for change in found.changes if not change.flagged], one, other),
        moved=[
            f"{label(b, study.every_key)}: {a.state}, now {b.state}" + (f" ({b.reason})" if b.reason else "")
            for a, b in found.moved
        ],
    )


def _changes(study: Study, changes: Sequence[Change], one: str, other: str) -> Plain:
    numbers = [Column(name, number=True) for name in (one, other, f"{other} / {one}")]
    head = [Column("cell"), Column("figure"), *numbers, Column("verdict")]
    flagged = frozenset(place for place, change in enumerate(changes) if change.flagged)
    return Plain("Differences", head, [_change(study, change) for change in changes], flagged)


def _sentence(found: Comparison) -> str:
    counts = Counter(change.verdict for change in found.changes)
    said = ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common()) or "no cell finished in both"
    lonely = f" {len(found.lonely)} cells are in one of them only." if found.lonely else ""
    return (
        f"Figures of cells with the same configuration: {said}. Better or worse: beyond the noise of the "
        "repeats (Welch's t on logarithms, Holm's correction over all comparisons, 5%) and by at least "
        f"{FLOOR:.0%}.{lonely}"
    )


def _change(study: Study, change: Change) -> list[Cell]:
    figure = change.figure
    values = [number(figure.value(row.result)) for row in (change.before, change.after)]
    texts = [label(change.after, study.keys), figure.title, *values, times(change.ratio)]
    return [*map(Cell, texts), Cell(change.verdict, mark=change.mark)]
