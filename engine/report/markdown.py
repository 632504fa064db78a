"""summary.md: the table in Markdown, best rows first; what was rejected or failed below. Knows no page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from engine.report.figures import SPEED
from engine.report.numbers import duration, number, times
from engine.report.sentences import METHOD, baselines, speedup, title
from engine.report.settings import command, described, shown
from engine.report.speedups import Effect
from engine.report.study import Study

_SPECIAL = re.compile(r"([\\`*\[\]<>|~&]|(?<!\w)_|_(?!\w))")  # an underscore inside a word is plain


def summary(study: Study, page_note: str = "") -> str:
    """The whole file. page_note: a sentence on why there is no page."""
    blocks = [
        f"# {cell(title(study))}",
        "\n".join(f"- {cell(line)}" for line in facts(study)),
        *([cell(page_note)] if page_note else []),
        *_measured(study),
        *_effects(study.effects),
        *_others(study),
        *_commands(study),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def facts(study: Study) -> list[str]:
    """What holds for the whole report, a sentence each."""
    counts = ", ".join(f"{n} {state}" for state, n in study.counts().items())
    found = [f"{len(study.rows)} cells: {counts}"]
    found += baselines(study)
    if study.common:
        found.append(f"common to all rows: {described(study.common)}")
    return found + list(study.notes)


def cell(text: str) -> str:
    """Text as one line of Markdown that shows exactly itself."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _measured(study: Study) -> Iterator[str]:
    if not study.ranked:
        return
    columns = [figure for figure in study.figures if figure.main]
    speed = [SPEED.label] if study.speedups else []
    head = ["#", *(["sweep"] if study.several else []), *study.keys]
    head += [
        name
        for figure in columns
        for name in (figure.title, *(["speed-up"] if figure.label in speed else []))
    ]
    body = []
    for row in study.ranked:
        line = [str(row.number), *([study.letter(row)] if study.several else [])]
        line += [shown(row, key) for key in study.keys]
        for figure in columns:
            line.append(number(figure.value(row.result)))
            line += [speedup(study, row)] if figure.label in speed else []
        body.append([*line, "; ".join(study.warnings.get(row.number, ()))])
    yield _table([*head, "warnings"], body)
    if study.speedups:
        yield cell(METHOD)


def _effects(found: Sequence[Effect]) -> Iterator[str]:
    if not found:
        return
    yield "## What each option is worth, all else equal"
    body = [
        [
            f"{described({effect.key: effect.value})} instead of {described({'': effect.instead})[1:]}",
            times(effect.ratio) + (f" ({effect.mark})" if effect.mark else ""),
            str(effect.ratio.count),
        ]
        for effect in found
    ]
    yield _table(["option", "output tokens/s", "pairs"], body)


def _others(study: Study) -> Iterator[str]:
    if not study.others:
        return
    yield "## Rejected, failed and open"
    head = ["#", *(["sweep"] if study.several else []), *study.keys, "state", "reason", "after"]
    body = []
    for row in study.others:
        where = [study.letter(row)] if study.several else []
        chosen = [shown(row, key) for key in study.keys]
        body.append(
            [str(row.number), *where, *chosen, str(row.state), row.reason or "", duration(row.seconds)]
        )
    yield _table(head, body)


def _commands(study: Study) -> Iterator[str]:
    yield "## The command of each row"
    lines = [f"{row.number:>3}  {command(row)}" for row in sorted(study.rows, key=lambda row: row.number)]
    fence = "`" * max(3, 1 + max((len(run) for line in lines for run in re.findall("`+", line)), default=0))
    yield "\n".join([fence + "text", *(" ".join(line.splitlines()) for line in lines), fence])


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Columns that are empty in every row are left out."""
    kept = [n for n in range(len(head)) if any(line[n] for line in body)]
    rows = [[cell(line[n]) for n in kept] for line in (head, *body)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(kept), *lines[1:]])
