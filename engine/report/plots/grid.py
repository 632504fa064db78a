"""The heat map of a grid: every cell of it, those without a figure with the word for their state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from engine.report.figures import Figure
from engine.report.numbers import number
from engine.report.plots.base import Plot, cut, escaped
from engine.report.rows import Row
from engine.report.settings import label, shown
from engine.report.study import Study

MAX_SIDE, NAME = 24, 34
STEP, AROUND = 34, 150  # pixels of a line of cells, and of what is around them
Place = tuple[str, str]


def heat_plot(study: Study) -> Plot | None:
    """Two keys or more that vary, and at least two values on each side."""
    rows, keys = study.rows, list(study.keys)
    across = split(rows, keys)
    if across is None:
        return None
    down = [key for key in keys if key not in across]
    places: dict[Place, list[Row]] = {}
    for row in rows:
        places.setdefault((_side(row, down, study), _side(row, across, study)), []).append(row)
    lines, columns = (_ordered(place[n] for place in places) for n in (0, 1))
    values = [[_value(study.leading, places.get((y, x), ())) for x in columns] for y in lines]
    words = [[_word(study.leading, places.get((y, x), ())) for x in columns] for y in lines]
    trace = {
        "type": "heatmap",
        "x": [f"{n}" for n in range(len(columns))],
        "y": [f"{n}" for n in range(len(lines))],
        "z": values,
        "text": words,
        "texttemplate": "%{text}",
        "hovertext": [[_hover(study, places.get((y, x), ())) for x in columns] for y in lines],
        "hoverinfo": "text",
        "colorscale": "$heat",
        "xgap": 2,
        "ygap": 2,
        "colorbar": {"title": {"text": study.leading.unit, "side": "right"}, "thickness": 12},
    }
    return Plot(
        "grid",
        "The whole grid",
        f"{study.leading.title} by {', '.join(down)} (down) and {', '.join(across)} (across); darker or lighter "
        "fields hold the number too, and fields without a figure say why.",
        [trace],
        {"xaxis": _ticks(columns), "yaxis": {**_ticks(lines), "autorange": "reversed"}},
        AROUND + STEP * len(lines) + 7 * max(map(len, columns)),
    )


def split(rows: Sequence[Row], keys: Sequence[str]) -> list[str] | None:
    """The keys across: as many of the last ones as make the sides most alike; None where there is no grid."""
    best: tuple[float, list[str]] | None = None
    for cut_at in range(1, len(keys)):
        sides = [
            len({tuple(shown(row, key) for key in own) for row in rows})
            for own in (keys[:cut_at], keys[cut_at:])
        ]
        if min(sides) < 2 or max(sides) > MAX_SIDE or math.prod(sides) > 2 * len(rows):
            continue
        score = abs(math.log(sides[0] / (1.5 * sides[1])))
        if best is None or score < best[0]:
            best = score, list(keys[cut_at:])
    return None if best is None else best[1]


def _side(row: Row, keys: Sequence[str], study: Study) -> str:
    return label(row, keys).partition(" ")[2]


def _ordered(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _value(figure: Figure, rows: Sequence[Row]) -> float | None:
    found = [
        value for row in rows if row.measured and isinstance(value := figure.value(row.result), int | float)
    ]
    return None if not found else max(found) if figure.better > 0 else min(found)


def _word(figure: Figure, rows: Sequence[Row]) -> str:
    value = _value(figure, rows)
    return number(value) if value is not None else ", ".join(dict.fromkeys(str(row.state) for row in rows))


def _hover(study: Study, rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        lines.append(escaped(label(row, study.keys)))
        lines.append(escaped(cut(row.reason, 120)) if row.reason else _word(study.leading, [row]))
    return "<br>".join(lines)


def _ticks(names: Sequence[str]) -> dict[str, object]:
    return {
        "type": "category",
        "automargin": True,
        "tickvals": [f"{n}" for n in range(len(names))],
        "ticktext": [escaped(cut(name or "-", NAME)) for name in names],
        "showgrid": False,
    }
