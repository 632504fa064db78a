"""The heat map of a grid: every cell of it, those without a figure with the word for their state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from engine.report.figures import Figure
from engine.report.numbers import number
from engine.report.plots.base import Plot, Trace, escaped
from engine.report.rows import Row
from engine.report.settings import cut, label, words
from engine.report.study import Study

MAX_DOWN, MAX_ACROSS, NAME = 24, 6, 34
FILLED = 0.6  # of the fields hold a row, or it is no grid
WIDER = 1.5  # a field is wider than it is high
STEP, AROUND = 34, 150  # pixels of a line of cells, and of what is around them
LETTER = 5  # pixels of height that a letter of a column's name may take when it is turned
SIGNS = {"rejected": "⊘", "waiting": "○", "unfinished": "○", "-": "-"}
FAILED = "✕"
Place = tuple[str, str]
Fields = Sequence[Sequence[Sequence[Row]]]


def heat_plot(study: Study) -> Plot | None:
    """Two keys or more that vary, and at least two values on each side."""
    rows = sorted(study.rows, key=lambda row: row.number)
    sides = ((keys, split(rows, keys)) for keys in (study.keys, study.every_key))
    keys, across = next(((keys, across) for keys, across in sides if across), ((), None))
    if across is None:
        return None
    down = [key for key in keys if key not in across]
    places: dict[Place, list[Row]] = {}
    for row in rows:
        places.setdefault((_side(row, down), _side(row, across)), []).append(row)
    lines, columns = (_ordered(place[n] for place in places) for n in (0, 1))
    fields = [[places.get((y, x), ()) for x in columns] for y in lines]
    return Plot(
        "grid",
        "The whole grid",
        f"{study.leading.title} by {', '.join(down)} (down) and {', '.join(across)} (across). Fields without "
        "a figure say why (on narrow screens: ⊘ rejected, ✕ failed, ○ open). Of several rows in one field "
        "the best counts.",
        [_known(study, fields), _unknown(study, fields)],
        {"xaxis": _ticks(columns), "yaxis": {**_ticks(lines), "autorange": "reversed"}, "showlegend": False},
        AROUND + STEP * len(lines) + LETTER * max(map(len, columns)),
    )


def _known(study: Study, fields: Fields) -> Trace:
    """Fields with a figure, coloured by it."""
    values = [[_value(study.leading, rows) for rows in line] for line in fields]
    texts = [["" if value is None else number(value) for value in line] for line in values]
    return {**_fields(study, fields, values, texts), "colorscale": "$heat"}


def _unknown(study: Study, fields: Fields) -> Trace:
    """Fields without one, all alike."""
    states = [
        [_states(rows) if _value(study.leading, rows) is None else "" for rows in line] for line in fields
    ]
    values = [[0.0 if word else None for word in line] for line in states]
    signs = [[_signs(text) for text in line] for line in states]
    plain = [[0, "$soft"], [1, "$soft"]]
    return {
        **_fields(study, fields, values, states),
        "colorscale": plain,
        "meta": {"brief": signs},
    }


def _signs(text: str) -> str:
    """A sign for each word of `_states`."""
    return "".join(SIGNS.get(word, FAILED) for word in text.split(", ")) if text else ""


def _fields(study: Study, fields: Fields, values: Sequence[Any], texts: Sequence[Any]) -> Trace:
    return {
        "type": "heatmap",
        "x": [f"{n}" for n in range(len(fields[0]))],
        "y": [f"{n}" for n in range(len(fields))],
        "z": values,
        "text": texts,
        "texttemplate": "%{text}",
        "textfont": {"color": "$text"},
        "hovertext": [[_hover(study, rows) for rows in line] for line in fields],
        "hoverinfo": "text",
        "hoverongaps": False,
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
    }


def split(rows: Sequence[Row], keys: Sequence[str]) -> list[str] | None:
    """The keys across: as many of the last ones as make the fields squarest; None where there is no grid."""
    best: tuple[float, list[str]] | None = None
    for cut_at in range(1, len(keys)):
        places = {(_side(row, keys[:cut_at]), _side(row, keys[cut_at:])) for row in rows}
        down, across = (len({place[n] for place in places}) for n in (0, 1))
        grid = 2 <= down <= MAX_DOWN and 2 <= across <= MAX_ACROSS and len(places) >= FILLED * down * across
        score = abs(math.log(down / (WIDER * across)))
        if grid and (best is None or score < best[0]):
            best = score, list(keys[cut_at:])
    return None if best is None else best[1]


def _side(row: Row, keys: Sequence[str]) -> str:
    return ", ".join(words(row, keys))


def _ordered(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _value(figure: Figure, rows: Sequence[Row]) -> float | None:
    found = [value for row in rows if row.measured and (value := figure.number(row.result)) is not None]
    return None if not found else max(found) if figure.better > 0 else min(found)


def _states(rows: Sequence[Row]) -> str:
    """The words for rows without a figure; a dash for a field that no cell is for."""
    return ", ".join(dict.fromkeys(str(row.state) for row in rows)) or "-"


def _hover(study: Study, rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        lines.append(escaped(label(row, study.keys)))
        value = _value(study.leading, [row])
        lines.append(escaped(cut(row.reason or str(row.state), 120)) if value is None else number(value))
    return "<br>".join(lines)


def _ticks(names: Sequence[str]) -> dict[str, object]:
    return {
        "type": "category",
        "automargin": True,
        "tickvals": [f"{n}" for n in range(len(names))],
        "ticktext": [escaped(cut(name or "-", NAME)) for name in names],
        "showgrid": False,
    }
