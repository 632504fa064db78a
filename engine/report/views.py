"""What the page's table shows, cell by cell, as text: the template only places it. Knows no HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.report.cells import Cell, Column, Plain
from engine.report.figures import SPEED, Figure, at, number_at
from engine.report.marks import mark_of
from engine.report.numbers import choice, duration, ends, interval, measure, number, times
from engine.report.provenance import stack
from engine.report.rows import Row
from engine.report.settings import command, label, replay_command, shown
from engine.report.speedups import Effect
from engine.report.study import Study

MAX_KEY_COLUMNS = 5  # more keys than that share one column
LOG = "log.txt"


@dataclass(frozen=True)
class RowView:
    """A measured row. facets: its value of each varied key. details: what has no column."""

    number: int
    cells: Sequence[Cell]
    facets: Sequence[str]
    warnings: Sequence[str]
    details: Sequence[tuple[str, str]]
    command: str
    replay: str | None


@dataclass(frozen=True)
class OtherView:
    """A row without figures. log: where its output is."""

    state: str
    name: str
    reason: str
    chips: Sequence[tuple[str, str]]
    command: str
    log: str
    seconds: str


def columns(study: Study) -> list[Column]:
    """In the order of `row_view`'s cells."""
    found = [Column("#", number=False, better=-1)]
    found += [Column("sweep")] if study.several else []
    found += [Column("choices")] if _many(study) else [Column(key) for key in study.keys]
    for figure in _main(study):
        found.append(Column(figure.label, figure.unit, not figure.word, figure.better))
        if figure.key == SPEED.key and study.speedups:
            found.append(Column("speed-up", "", True, 1))
    return found


def row_view(study: Study, row: Row) -> RowView:
    """A row of the table."""
    cells = [Cell(str(row.number), str(row.number))]
    cells += [Cell(study.letter(row), study.letter(row))] if study.several else []
    cells += _chosen(study, row)
    for figure in _main(study):
        value = figure.value(row.result)
        ours = ends(figure.interval(row.result))
        cells.append(Cell(number(value), "" if value is None else str(value), small=ours))
        if figure.key == SPEED.key and study.speedups:
            cells.append(_speedup(study, row))
    return RowView(
        row.number,
        cells,
        [shown(row, key) for key in study.keys],
        study.warnings.get(row.number, ()),
        _details(study, row),
        command(row),
        replay_command(row),
    )


def other_view(study: Study, row: Row) -> OtherView:
    """A row of the list below the table."""
    name = f"{study.letter(row)} {label(row, ())}" if study.several else label(row, ())
    chips = _chips(row, study.every_key)
    log = "" if row.path is None else str(Path(row.path.parent.name) / row.path.name / LOG)
    known = bool(row.path and (row.path / LOG).is_file())
    return OtherView(
        str(row.state),
        name,
        row.reason or "",
        chips,
        command(row),
        log if known else "",
        duration(row.seconds),
    )


def effects_table(study: Study) -> Plain:
    """What each option is worth."""
    head = [Column("option"), Column("instead of"), Column("output tokens/s", number=True)]
    head += [Column("pairs of rows", number=True), Column("so")]
    return Plain("What each option is worth", head, [_effect(effect) for effect in study.effects])


def _effect(effect: Effect) -> list[Cell]:
    ratio = effect.ratio
    verdict = "too few pairs to say"
    if ratio.low is not None and ratio.high is not None:
        verdict = "faster" if ratio.low > 1 else "slower" if ratio.high < 1 else "no clear difference"
    texts = [f"{effect.key}={choice(effect.value)}", choice(effect.instead), times(ratio), str(ratio.count)]
    return [*map(Cell, texts), Cell(verdict, mark=effect.mark)]


def _main(study: Study) -> list[Figure]:
    return [figure for figure in study.figures if figure.main]


def _many(study: Study) -> bool:
    return len(study.keys) > MAX_KEY_COLUMNS


def _chosen(study: Study, row: Row) -> list[Cell]:
    if _many(study):
        chips = _chips(row, study.keys)
        return [Cell("", " ".join(value for _, value in chips), chips=chips)]
    own = row.settings
    return [Cell(shown(row, key), choice(own[key]) if key in own else "") for key in study.keys]


def _chips(row: Row, keys: Sequence[str]) -> list[tuple[str, str]]:
    own = row.settings
    return [(key, choice(own[key])) for key in keys if key in own]


def _speedup(study: Study, row: Row) -> Cell:
    own = study.speedups.get(row.number)
    if own is None:
        base = study.baselines[row.source].chosen_by(row)
        return Cell("baseline" if base and study.baselines[row.source].values else number(None))
    text = f"{number(own.ratio.value)}x"
    return Cell(text, str(own.ratio.value), interval(own.ratio).strip(), own.mark)


def _paired(row: Row) -> list[tuple[str, str]]:
    """What an evaluation says of the same questions, answered by another configuration."""
    pairs = at(row.result, "against.pairs")
    found = []
    for score, pair in pairs.items() if isinstance(pairs, Mapping) else ():
        gain, p = number_at(pair, "difference"), number_at(pair, "p_value")
        if gain is not None and p is not None:
            text = f"{100 * gain:+.1f} points (McNemar, p = {number(p)})"
            found.append((f"{score} against that", text))
    return found


def _details(study: Study, row: Row) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    mark = mark_of(row)
    for figure in study.figures:
        value = figure.value(row.result)
        if not figure.main and value is not None:
            claim = f" ({mark})" if mark and figure.key == "speedup_in_run" else ""
            found.append((figure.label, measure(value, figure.unit) + claim))
    found += _paired(row)
    own = study.speedups.get(row.number)
    if own is not None:
        how = f", {own.seeds} seeds paired" if own.seeds else ""
        found.append(("speed-up over", f"#{own.base}{how}"))
    facts = dict(stack(row.facts))
    found += [(name, facts[name]) for name in ("commit", "code", "machine") if name in facts]
    found += [("seed", str(row.facts["seed"]))] if row.facts.get("seed") is not None else []
    found += [("job took", duration(row.seconds))] if row.seconds is not None else []
    return found
