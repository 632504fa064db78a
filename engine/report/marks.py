"""What a reader of a row must be warned of, and the words that stand beside its speed-up.

Knows results of runs; compares nothing.
"""

from __future__ import annotations

from engine.report.figures import list_at, number_at
from engine.report.numbers import number
from engine.report.rows import Row
from engine.tasks.bench_report import EAGER_SHARE, MARKS, UNFAIR

OUTSIDE = "outside a graph"


def warnings_of(row: Row) -> list[str]:
    """The run's own warnings, and those that its figures call for and it did not say."""
    result = row.result
    found = [str(line) for line in list_at(result, "warnings")]
    if _drafted(row) and result.get("representative") is False and not _says(found, UNFAIR):
        found.append(f"{UNFAIR}: the workload is random tokens, whose acceptance says nothing of text")
    eager = number_at(result, "eager_decode_share") or 0.0
    if eager > EAGER_SHARE and not any(OUTSIDE in line for line in found):
        found.append(f"{number(100 * eager)}% of the decode steps ran {OUTSIDE} although graphs are on")
    if result.get("verdict") == "different":
        found.append("its answers differ from the reference path's")
    return found


def mark_of(row: Row) -> str:
    """What stands behind a figure of this row that would mislead alone: `not representative`; or nothing."""
    found = warnings_of(row)
    return ", ".join(word for word in MARKS if _says(found, word))


def _drafted(row: Row) -> bool:
    counts = (number_at(row.result, path) for path in ("metrics.drafted_tokens", "spec.proposed"))
    return any(count is not None and count > 0 for count in counts)


def _says(lines: list[str], word: str) -> bool:
    return any(line.startswith(word) for line in lines)
