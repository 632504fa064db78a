"""What came of drafts: counts of runs, and the figures that follow from them. Free of torch.

A run is what one request got from one decode step with drafts. Knows no engine and no drafter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class Run(NamedTuple):
    """drafted: nodes. accepted: drafts, before the run was cut. emitted: tokens that the user got, of at most
    accepted + 1; fewer where a stop id, a stop string or the length cut it."""

    width: int
    drafted: int
    accepted: int
    emitted: int
    greedy: bool

    @property
    def cut(self) -> bool:
        return self.emitted <= self.accepted


@dataclass(frozen=True)
class SpecCounts:
    """runs: results of steps with drafts. widths: decode steps by width, plain ones too. stages: seconds by
    stage, empty where nobody timed."""

    runs: Counter[Run]
    widths: Counter[int]
    stages: Mapping[str, float]

    def since(self, before: SpecCounts) -> SpecCounts:
        """What happened after `before`."""
        stages = {name: value - before.stages.get(name, 0.0) for name, value in self.stages.items()}
        return SpecCounts(self.runs - before.runs, self.widths - before.widths, stages)

    def __add__(self, other: SpecCounts) -> SpecCounts:
        names = {**self.stages, **other.stages}
        stages = {name: self.stages.get(name, 0.0) + other.stages.get(name, 0.0) for name in names}
        return SpecCounts(self.runs + other.runs, self.widths + other.widths, stages)


NOTHING = SpecCounts(Counter(), Counter(), {})


def spec_figures(counts: SpecCounts, results: int, deepest: int) -> dict[str, Any]:
    """Figures for a report. results: (request, decode step) pairs, with drafts or without. deepest: drafts on
    the longest path.

    accept_length_histogram: tokens of a run -> runs, those without drafts included. acceptance_per_position:
    share of accepted drafts at each depth among the runs that drafted it; where the end of an answer cut a
    run, nothing is known past the cut. proposed: drafted nodes; accepted: drafts that became output.
    """
    runs = counts.runs
    lengths = Counter[int]()
    for run, times in runs.items():
        lengths[run.emitted] += times
    lengths[1] += max(results - runs.total(), 0)
    return {
        "proposed": sum(run.drafted * times for run, times in runs.items()),
        "accepted": sum(min(run.accepted, run.emitted) * times for run, times in runs.items()),
        "emitted": sum(length * times for length, times in lengths.items()),
        "accept_length_histogram": {str(n): lengths[n] for n in sorted(lengths) if lengths[n]},
        "acceptance_per_position": _per_position(runs, deepest),
        "widths": {str(width): counts.widths[width] for width in sorted(counts.widths)},
        "time_shares": time_shares(counts.stages),
    }


def time_shares(stages: Mapping[str, float]) -> dict[str, float] | None:
    """Of the time of decode steps: draft (propose), verify (the target's pass), learn (what the drafter takes
    from it), other (acceptance, sampling, bookkeeping). None where nobody timed."""
    whole = stages.get("step", 0.0) + stages.get("learn", 0.0)
    if whole <= 0:
        return None
    named = {name: stages.get(name, 0.0) / whole for name in ("draft", "verify", "learn")}
    return {**named, "other": max(0.0, 1.0 - sum(named.values()))}


def _per_position(runs: Mapping[Run, int], deepest: int) -> list[float]:
    tried, hit = [0] * deepest, [0] * deepest
    for run, times in runs.items():
        levels = min(run.drafted, deepest)
        known = min(levels, run.emitted) if run.cut else levels
        for depth in range(known):
            tried[depth] += times
            hit[depth] += times * (depth < run.accepted)
    return [h / t for h, t in zip(hit, tried, strict=True) if t]
