"""Sentences that page and summary share: titles, what was compared with what, and how. Knows no form."""

from __future__ import annotations

from datetime import datetime

from engine.report.settings import described
from engine.report.study import Study, letter

METHOD = (
    "Speed-up: ratio of the geometric means of output tokens/s. In brackets its 95% interval: Welch's t on "
    "the logarithms of the repeats, or, where runs with three or more seeds are paired, Student's t on the "
    "logarithms of their ratios. Fewer than three repeats: no interval. Repeats of one process do not show "
    "what differs between processes, days and machines."
)


def title(study: Study) -> str:
    """The study's name where it has one, else the folders'."""
    names = dict.fromkeys(sweep.study or sweep.name for sweep in study.sweeps)
    single = all(sweep.created is None for sweep in study.sweeps)
    return ("Runs " if single else "Sweep ") + ", ".join(names)


def baselines(study: Study) -> list[str]:
    """What the speed-ups of each sweep are over."""
    found = []
    for place, (sweep, baseline) in enumerate(zip(study.sweeps, study.baselines, strict=True)):
        name = f"{letter(place)} ({sweep.name}): " if study.several else ""
        if any(row.number in study.speedups for row in sweep.rows):
            found.append(f"{name}speed-ups are over {described(baseline.values)}, all else equal")
    return found


def now() -> str:
    """The time of writing, to the minute."""
    return datetime.now().astimezone().isoformat(sep=" ", timespec="minutes")
