"""Plots of what drafts earn: tokens a step, and acceptance by the draft's depth. Knows rows and figures."""

from __future__ import annotations

from engine.report.figures import list_at, number_at
from engine.report.numbers import number
from engine.report.plots.base import (
    MAX_BARS,
    MAX_LINES,
    Plot,
    Trace,
    axis,
    bars_axis,
    bars_height,
    beside,
    escaped,
    limited,
    name,
    names,
    rows_axis,
    series,
    short,
)
from engine.report.rows import Row
from engine.report.study import Study


def accept_plot(study: Study) -> Plot | None:
    """Tokens that a request gets from a decode step, where drafts were accepted at all."""
    every = [row for row in study.ranked if _length(row)]
    if not any(number_at(row.result, "spec.accepted") for row in every):
        return None
    every.sort(key=_length, reverse=True)
    rows = every[:MAX_BARS]
    values = [_length(row) for row in rows]
    trace: Trace = {
        "type": "bar",
        "orientation": "h",
        "y": [short(row) for row in rows],
        "x": values,
        "hovertext": [_hover(study, row) for row in rows],
        "hoverinfo": "text",
        "marker": {"color": "$c2"},
    }
    return Plot(
        "accept",
        "Accept length",
        "Tokens that a request gets from a decode step: 1 without drafts. Counted from token ids after "
        "trimming, over the counted runs alone." + limited(every, MAX_BARS),
        [trace, beside(rows, values, [number(value) for value in values])],
        {"xaxis": bars_axis("tokens in a step", values), "yaxis": rows_axis(rows), "showlegend": False},
        bars_height(rows),
        names(study, rows),
    )


def positions_plot(study: Study) -> Plot | None:
    """Share of accepted drafts at each depth."""
    every = [row for row in study.ranked if _shares(row)]
    if not every:
        return None
    rows = every[:MAX_LINES]
    return Plot(
        "positions",
        "Acceptance by depth",
        "Of the steps that drafted so deep: the share in which the draft was accepted up to there."
        + limited(every, MAX_LINES),
        [_depths(study, row, n) for n, row in enumerate(rows)],
        {
            "xaxis": axis("depth of the draft (tokens)", dtick=1),
            "yaxis": axis("accepted (%)", range=[0, 104]),
            "showlegend": True,
        },
        400 + 22 * len(rows),
    )


def _depths(study: Study, row: Row, place: int) -> Trace:
    values = [100.0 * share for share in _shares(row)]
    title = name(study, row)
    return {
        **series(title, place, short(row)),
        "x": list(range(1, len(values) + 1)),
        "y": values,
        "hovertext": [
            f"{escaped(title)}<br>depth {n}: {number(value)}%" for n, value in enumerate(values, 1)
        ],
        "hoverinfo": "text",
    }


def _hover(study: Study, row: Row) -> str:
    accepted, proposed = (number_at(row.result, f"spec.{count}") for count in ("accepted", "proposed"))
    lines = [escaped(name(study, row)), f"{number(_length(row))} tokens in a step"]
    lines += [f"{accepted:,.0f} of {proposed:,.0f} drafts accepted"] if accepted and proposed else []
    return "<br>".join([*lines, *map(escaped, study.warnings.get(row.number, ()))])


def _length(row: Row) -> float:
    """0 where it is not known."""
    return number_at(row.result, "accept_length") or 0.0


def _shares(row: Row) -> list[float]:
    """By depth; none where drafts were not counted."""
    found = list_at(row.result, "spec.acceptance_per_position")
    return [share for share in found if isinstance(share, int | float)]
