"""What all plots share: the value that the page draws, names of rows on an axis, looks that need no colour.

Colours are names (`$c0`, `$text`) that the page replaces by those of its theme. Imports no plotting library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.report.rows import Row
from engine.report.settings import label
from engine.report.study import Study

Trace = dict[str, Any]
MAX_BARS, MAX_LINES = 40, 8
NAME = 46  # letters of a row's name beside its bar
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
        layout = {**self.layout, "height": self.height}
        return {"id": self.id, "data": list(self.data), "layout": layout, "names": dict(self.names)}


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis that makes room for its own numbers."""
    return {"title": {"text": title, "standoff": 12}, "automargin": True, **more}


def rows_axis() -> dict[str, Any]:
    """A y axis of rows, the first one on top."""
    return {"type": "category", "autorange": "reversed", "automargin": True, "title": {"text": ""}}


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


def cut(text: str, width: int) -> str:
    """The text, with an ellipsis where it is longer than `width` letters."""
    return text if len(text) <= width else text[: width - 1].rstrip(" ,") + "…"


def escaped(text: str) -> str:
    """Plotly reads a little HTML in every text that it draws."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def bars_height(rows: Sequence[Row]) -> int:
    """Pixels for a bar each."""
    return AROUND + BAR * max(len(rows), 2)


def limited(rows: Sequence[Row], most: int) -> str:
    """The sentence that says that not all are drawn."""
    return f" The best {most} of {len(rows)} rows." if len(rows) > most else ""
