"""Everything that a report says, computed once: for the page, the Markdown and the CSV alike.

Knows rows and figures; writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.report.baselines import Baseline, baseline_of
from engine.report.figures import SPEED, Figure, present, primary
from engine.report.marks import warnings_of
from engine.report.rows import Row, State, Sweep
from engine.report.settings import described, differing, shared
from engine.report.speedups import Effect, Speedup, effects, speedups


@dataclass(frozen=True)
class Study:
    """ranked: measured rows, best first. others: the rest, in the sweeps' order. keys: in which measured rows
    differ; every_key: in which any rows do. common: what all measured rows chose alike. speedups, warnings:
    by row number. notes: on the report as a whole."""

    sweeps: Sequence[Sweep]
    ranked: Sequence[Row]
    others: Sequence[Row]
    keys: Sequence[str]
    every_key: Sequence[str]
    common: Mapping[str, str]
    figures: Sequence[Figure]
    leading: Figure
    baselines: Sequence[Baseline]
    speedups: Mapping[int, Speedup]
    effects: Sequence[Effect]
    warnings: Mapping[int, Sequence[str]]
    notes: Sequence[str]

    @property
    def rows(self) -> list[Row]:
        return [*self.ranked, *self.others]

    @property
    def several(self) -> bool:
        """Whether sweeps stand beside each other."""
        return len(self.sweeps) > 1

    def letter(self, row: Row) -> str:
        """A, B, ...: the sweep of a row."""
        return letter(row.source)

    def counts(self) -> dict[State, int]:
        """How many rows are in each state; states without rows left out."""
        rows = self.rows
        return {state: n for state in State if (n := sum(row.state is state for row in rows))}


def letter(source: int) -> str:
    """A to Z, then S27, S28, ..."""
    return chr(ord("A") + source) if source < 26 else f"S{source + 1}"


def make_study(sweeps: Sequence[Sweep], chosen: Sequence[str] | None = None) -> Study:
    """Rank, compare and mark. chosen: overrides that name the baseline, over what the sweeps say."""
    rows = [row for sweep in sweeps for row in sweep.rows]
    results = [row.result for row in rows if row.measured]
    leading = primary(results, sweeps[0].figure, sweeps[0].lower)
    measured = [row for row in rows if row.measured]
    baselines = [baseline_of(sweep, chosen) for sweep in sweeps]
    found: dict[int, Speedup] = {}
    for sweep, baseline in zip(sweeps, baselines, strict=True):
        found |= speedups(sweep.rows, baseline)
    return Study(
        sweeps=sweeps,
        ranked=sorted(measured, key=lambda row: _rank(leading, row)),
        others=[row for row in rows if not row.measured],
        keys=differing(measured or rows),
        every_key=differing(rows),
        common=shared(measured or rows),
        figures=present(results, leading),
        leading=leading,
        baselines=baselines,
        speedups=found,
        effects=effects(sweeps[0].rows, baselines[0]) if len(sweeps) == 1 else [],
        warnings={row.number: lines for row in measured if (lines := warnings_of(row))},
        notes=_notes(sweeps, baselines, found),
    )


def _rank(leading: Figure, row: Row) -> tuple[float, int]:
    value = leading.number(row.result)
    return (float("inf") if value is None else -leading.better * value, row.number)


def _notes(sweeps: Sequence[Sweep], baselines: Sequence[Baseline], found: Mapping[int, Speedup]) -> list[str]:
    notes = []
    for sweep, baseline in zip(sweeps, baselines, strict=True):
        speeds = [row for row in sweep.rows if row.measured and SPEED.number(row.result) is not None]
        if len(speeds) < 2 or not baseline.values or any(row.number in found for row in speeds):
            continue
        wanted, bases = described(baseline.values), [row for row in speeds if baseline.chosen_by(row)]
        if not bases:
            notes.append(f"{sweep.name}: no speed-up, since no finished cell has the baseline {wanted}")
        elif len(bases) < len(speeds):
            notes.append(f"{sweep.name}: no speed-up, since no row equals one with {wanted} in all else")
    return notes
