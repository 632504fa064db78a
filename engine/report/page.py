"""report.html: one file that opens offline. Places what views and plots say; knows no figure itself.

Texts are escaped by the template engine; the data of the plots travel as JSON that cannot end its element.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from engine import __version__
from engine.report.cells import Column
from engine.report.comparison_views import comparison_views, sweeps_table
from engine.report.library import script
from engine.report.numbers import number, times
from engine.report.plots import plots
from engine.report.plots.base import Plot, name
from engine.report.sentences import METHOD, baselines, now, title
from engine.report.settings import command, shown
from engine.report.study import Study
from engine.report.views import columns, effects_table, other_view, row_view


def html(study: Study) -> str:
    """The whole page. UserError where the plotting library is not installed."""
    drawn = plots(study)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = environment.from_string(_asset("page.html.jinja"))
    return template.render(
        page=_page(study, drawn),
        css=Markup(_asset("page.css")),
        theme_js=Markup(_asset("theme.js")),
        page_js=Markup(_asset("page.js")),
        plotly_js=Markup(script()),
    )


def _page(study: Study, drawn: Sequence[Plot]) -> dict[str, Any]:
    table = columns(study)
    return {
        "version": __version__,
        "title": title(study),
        "counts": [(str(state), count) for state, count in study.counts().items()],
        "sections": _sections(study, drawn),
        "facts": baselines(study),
        "notes": study.notes,
        "best": _best(study),
        "common": list(study.common.items()),
        "sweeps": sweeps_table(study),
        "comparisons": comparison_views(study),
        "columns": table,
        "order": _order(study, table),
        "rows": [row_view(study, row) for row in study.ranked],
        "facets": _facets(study),
        "method": METHOD,
        "effects": effects_table(study),
        "plots": drawn,
        "figures": _json([plot.figure() for plot in drawn]),
        "others": [other_view(study, row) for row in study.others],
        "foot": f"Written {now()} by Syncless {__version__}. results.csv has all figures in full.",
    }


def _order(study: Study, table: Sequence[Column]) -> dict[str, Any]:
    """The column that the table is sorted by at first."""
    places = [place for place, column in enumerate(table) if column.title == study.leading.title]
    return {"column": places[0] if places else 0, "down": bool(places) and study.leading.better > 0}


def _sections(study: Study, drawn: Sequence[Plot]) -> list[tuple[str, str]]:
    every = (
        ("comparison", "Sweeps side by side", study.several),
        ("table", "Rows", study.ranked),
        ("effects", "What each option is worth", study.effects),
        ("plots", "Plots", drawn),
        ("others", "Rejected, failed and open", study.others),
    )
    return [(anchor, text) for anchor, text, there in every if there]


def _best(study: Study) -> dict[str, str] | None:
    """The first row, in words; None before a row has figures."""
    best = next((row for row in study.ranked if study.leading.value(row.result) is not None), None)
    if best is None:
        return None
    own = study.speedups.get(best.number)
    return {
        "name": name(study, best),
        "value": number(study.leading.value(best.result)),
        "unit": f"{study.leading.label} {study.leading.unit}",
        "speedup": times(own.ratio) if own else "",
        "over": f"over row #{own.base}" if own else "",
        "mark": own.mark if own else "",
        "command": command(best),
    }


def _facets(study: Study) -> list[dict[str, Any]]:
    """The values of each key that varies, as the rows show them."""
    return [
        {"key": key, "choices": list(dict.fromkeys(shown(row, key) for row in study.ranked))}
        for key in study.keys
    ]


def _json(document: Any) -> Markup:
    """JSON inside a script element: `<` and its like are escaped, so that no text can close it."""
    text = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)


def _asset(name: str) -> str:
    return resources.files("engine.report").joinpath("assets", name).read_text(encoding="utf-8")
