"""The difference of two runs as lines for a person. Finds nothing itself."""

from __future__ import annotations

from collections.abc import Sequence

from engine.diff.comparing import Difference
from engine.diff.figures import Figure
from engine.replay.changes import shown
from engine.replay.outputs import place_of
from engine.report.numbers import number
from engine.report.stats import Ratio
from engine.snapshot import Snapshot

MOST_SHOWN = 20


def lines_of(difference: Difference) -> list[str]:
    """Runs, settings, stack, batches, answers, figures."""
    d = difference
    settings = [f"{key}: {a} -> {b}" for key, (a, b) in d.settings.items()]
    return [
        f"A  {_run(d.first)}",
        f"B  {_run(d.second)}",
        *_part("settings", settings, "the same"),
        *_part("stack", shown(d.stack), "the same: code, packages, machine and files"),
        f"batches: {d.batches or 'the same'}",
        *_answers(d),
        *_figures(d.figures),
    ]


def _run(run: Snapshot) -> str:
    return f"{run.path} ({run.facts.get('started', 'unknown time')}, {run.origin})"


def _part(title: str, lines: Sequence[str], none: str) -> list[str]:
    return [f"{title}:", *(f"  {line}" for line in lines)] if lines else [f"{title}: {none}"]


def _answers(d: Difference) -> list[str]:
    found, answers = d.compared.differences, d.compared.answers
    if not answers and not found:
        return ["answers: none kept"]
    lines = [f"answers: {answers - _lost(d)} of {answers} are the same, {d.compared.tokens} tokens"]
    if d.prompts:
        lines.append(f"  other prompts: {', '.join(str(at + 1) for at in d.prompts[:MOST_SHOWN])}")
    for one in found[:MOST_SHOWN]:
        tokens = one.get("tokens")
        pair = "" if tokens is None else f" ({tokens[0]} -> {tokens[1]})"
        lines.append(f"  {place_of(one)}: {one['reason']} from token {one['position']}{pair}")
    return [*lines, *([f"  and {len(found) - MOST_SHOWN} more"] if len(found) > MOST_SHOWN else [])]


def _lost(d: Difference) -> int:
    """Answers of A that B does not have in the same form."""
    return sum(one["reason"] != "the answer is missing then" for one in d.compared.differences)


def _figures(figures: Sequence[Figure]) -> list[str]:
    if not figures:
        return ["figures: the same"]
    rows = [(f.name, number(f.first), number(f.second), change(f.ratio), _mark(f)) for f in figures]
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    lines = [
        f"  {name:<{widths[0]}}  {a:>{widths[1]}}  {b:>{widths[2]}}  {c:<{widths[3]}}  {mark}".rstrip()
        for name, a, b, c, mark in rows
    ]
    return ["figures, B against A; of repeats the geometric mean, from three on with a 95% interval:", *lines]


def change(ratio: Ratio | None) -> str:
    """`+4.2% [+3.1%, +5.3%]`; empty without a ratio."""
    if ratio is None:
        return ""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value - 1:+.1%}"
    return f"{ratio.value - 1:+.1%} [{ratio.low - 1:+.1%}, {ratio.high - 1:+.1%}]"


def _mark(figure: Figure) -> str:
    return {True: "beyond the noise", False: "within the noise", None: ""}[figure.beyond]
