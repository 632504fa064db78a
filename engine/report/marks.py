"""What a reader of a row must be warned of, and the words that stand beside its speed-up.

Knows results of runs; compares nothing.
"""

from __future__ import annotations

from typing import Any

from engine.report.figures import at
from engine.report.numbers import number
from engine.report.rows import Row
from engine.tasks.bench_report import EAGER_SHARE, MARKS, UNFAIR

OUTSIDE = "outside a graph"


def warnings_of(row: Row) -> list[str]:
    """The run's own warnings, and those that its figures call for and it did not say."""
    result = row.result
    found = [str(line) for line in result.get("warnings") or ()]
    if _drafted(row) and result.get("representative") is False and not _says(found, UNFAIR):
        found.append(f"{UNFAIR}: the workload is random tokens, whose acceptance says nothing of text")
    eager = result.get("eager_decode_share")
    if isinstance(eager, float) and eager > EAGER_SHARE and not any(OUTSIDE in line for line in found):
        found.append(f"{number(100 * eager)}% of the decode steps ran {OUTSIDE} although graphs are on")
    if result.get("verdict") == "different":
        found.append("its answers differ from the reference path's")
    return found


def mark_of(row: Row) -> str:
    """What stands behind a figure of this row that would mislead alone: `not representative`; or nothing."""
    found = warnings_of(row)
    return ", ".join(word for word in MARKS if _says(found, word))


def _drafted(row: Row) -> bool:
    counts: Any = (at(row.result, "metrics.drafted_tokens"), at(row.result, "spec.proposed"))
    return any(isinstance(count, int | float) and count > 0 for count in counts)


def _says(lines: list[str], word: str) -> bool:
    return any(line.startswith(word) for line in lines)
