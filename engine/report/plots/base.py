"""What all plots share: the value that the page draws, names of rows on an axis, looks that need no colour.

Colours are names (`$c0`, `$text`) that the page replaces by those of its theme. Imports no plotting library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.report.rows import Row
from engine.report.settings import cut, label
from engine.report.study import Study

Trace = dict[str, Any]
MAX_BARS, MAX_LINES = 40, 8
NAME = 46  # letters of a row's name beside its bar
SERIES, BRIEF = 60, 34  # letters of a series' name in the legend
ROOM = 1.25  # of the longest bar
LEGEND = 62  # pixels between the drawing and its legend: the x axis
BAR, AROUND = 24, 110  # pixels of a bar, and of axes and legend
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "5px,2px", "2px,6px")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "hexagon")
PATTERNS = ("", "/", ".", "x")


@dataclass(frozen=True)
class Plot:
    """id: its anchor. caption: what one sees, in a sentence or two. height: pixels. names: long names of the
    rows on the y axis, whose values are short ones: narrow screens show those."""

    id: str
    title: str
    caption: str
    data: Sequence[Trace]
    layout: Mapping[str, Any]
    height: int = 420
    names: Mapping[str, str] = field(default_factory=dict)

    def figure(self) -> dict[str, Any]:
        """What the page's script needs."""
        legend = {
            "orientation": "h",
            "x": 0,
            "y": -LEGEND / self.height,
            "yanchor": "top",
            "traceorder": "normal",
        }
        layout = {**self.layout, "height": self.height, "legend": legend}
        return {"id": self.id, "data": list(self.data), "layout": layout, "names": dict(self.names)}


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis that makes room for its own numbers."""
    return {"title": {"text": title, "standoff": 12}, "automargin": True, **more}


def rows_axis(rows: Sequence[Row]) -> dict[str, Any]:
    """A y axis of rows, the first one on top."""
    order = {"categoryorder": "array", "categoryarray": [short(row) for row in rows]}
    return {"type": "category", **order, "range": [len(rows) - 0.4, -0.6], "automargin": True}


def bars_axis(title: str, ends: Sequence[float]) -> dict[str, Any]:
    """An x axis from zero with room for the numbers beside the bars."""
    return axis(title, range=[0, ROOM * max(ends)])


def beside(rows: Sequence[Row], ends: Sequence[float], texts: Sequence[str]) -> Trace:
    """Numbers to the right of the bars' ends, where no whisker crosses them."""
    return {
        "type": "scatter",
        "mode": "text",
        "x": list(ends),
        "y": [short(row) for row in rows],
        "text": [f"\u00a0{text}" for text in texts],  # a little away from the bar
        "textposition": "middle right",
        "textfont": {"color": "$text"},
        "hoverinfo": "skip",
        "cliponaxis": False,
    }


def short(row: Row) -> str:
    """A row's name on an axis."""
    return f"#{row.number}"


def name(study: Study, row: Row, keys: Sequence[str] | None = None) -> str:
    """A row's name in words, with its sweep's letter where there are several."""
    text = label(row, study.keys if keys is None else keys)
    return f"{study.letter(row)} {text}" if study.several else text


def names(study: Study, rows: Sequence[Row]) -> dict[str, str]:
    """Short name -> long name, cut where it would leave no room for the bars."""
    return {short(row): cut(name(study, row), NAME) for row in rows}


def series(title: str, place: int, brief: str) -> Trace:
    """What sets a line apart without its colour, and its names in the legend of wide and narrow screens."""
    color = f"$c{place % MAX_LINES}"
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": escaped(cut(title, SERIES)),
        "meta": {"brief": escaped(cut(brief, BRIEF))},
        "line": {"color": color, "dash": DASHES[place % len(DASHES)]},
        "marker": {"color": color, "symbol": SYMBOLS[place % len(SYMBOLS)], "size": 9},
    }


def escaped(text: str) -> str:
    """Plotly reads a little HTML in every text that it draws."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def bars_height(rows: Sequence[Row]) -> int:
    """Pixels for a bar each."""
    return AROUND + BAR * max(len(rows), 2)


def limited(rows: Sequence[Row], most: int) -> str:
    """The sentence that says that not all are drawn."""
    return f" The best {most} of {len(rows)} rows." if len(rows) > most else ""
