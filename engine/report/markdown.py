"""summary.md: the table in Markdown, best rows first; what was rejected or failed below. Knows no page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from engine.report.cells import Cell, Plain
from engine.report.comparison_views import comparison_views
from engine.report.numbers import duration
from engine.report.sentences import METHOD, baselines, title
from engine.report.settings import command, described, shown
from engine.report.study import Study
from engine.report.views import columns, effects_table, row_view

_SPECIAL = re.compile(r"([\\`*\[\]<>|~&]|(?<!\w)_|_(?!\w))")  # an underscore inside a word is plain


def summary(study: Study, page_note: str = "") -> str:
    """The whole file. page_note: a sentence on why there is no page."""
    blocks = [
        f"# {cell(title(study))}",
        "\n".join(f"- {cell(line)}" for line in facts(study)),
        *([cell(page_note)] if page_note else []),
        *_measured(study),
        *_effects(effects_table(study)),
        *_comparisons(study),
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
        found.append(f"common to all rows of the table: {described(study.common)}")
    return found + list(study.notes)


def cell(text: str) -> str:
    """Text as one line of Markdown that shows exactly itself."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _measured(study: Study) -> Iterator[str]:
    if not study.ranked:
        return
    head = [column.title for column in columns(study)]
    views = [row_view(study, row) for row in study.ranked]
    yield _table([*head, "warnings"], [[*map(_text, view.cells), "; ".join(view.warnings)] for view in views])
    if study.speedups:
        yield cell(METHOD)


def _text(shown: Cell) -> str:
    """A cell of the page's table on one line."""
    chips = " ".join(f"{key}={value}" for key, value in shown.chips)
    mark = f"({shown.mark})" if shown.mark else ""
    return " ".join(filter(None, (chips or shown.text, shown.small, mark)))


def _effects(table: Plain) -> Iterator[str]:
    if not table.rows:
        return
    yield "## What each option is worth, all else equal"
    yield _table([column.title for column in table.columns], [list(map(_text, row)) for row in table.rows])


def _comparisons(study: Study) -> Iterator[str]:
    for view in comparison_views(study):
        yield f"## {cell(view.title)}"
        yield cell(view.sentence)
        for table in (view.facts, view.flagged):
            if table.rows:
                head = [column.title for column in table.columns]
                yield _table(head, [list(map(_text, row)) for row in table.rows])
        if view.moved:
            yield "\n".join(f"- {cell(line)}" for line in view.moved)


def _others(study: Study) -> Iterator[str]:
    if not study.others:
        return
    yield "## Rejected, failed and open"
    head = ["#", *(["sweep"] if study.several else []), *study.every_key, "state", "reason", "after"]
    body = []
    for row in study.others:
        where = [study.letter(row)] if study.several else []
        chosen = [shown(row, key) for key in study.every_key]
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
