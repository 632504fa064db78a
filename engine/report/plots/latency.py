"""Plots of latency: percentiles by row, and where the time of a step goes. Knows rows and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.report.figures import PERCENTILES, at, number_at
from engine.report.numbers import number
from engine.report.plots.base import (
    MAX_BARS,
    PATTERNS,
    Plot,
    Trace,
    axis,
    bars_height,
    escaped,
    limited,
    name,
    names,
    rows_axis,
    short,
)
from engine.report.rows import Row
from engine.report.study import Study

SYMBOLS = ("circle", "diamond", "square")
STAGES = {"draft": "draft", "verify": "verify", "learn": "learn", "other": "other"}
WHOLE = "whole step"


def first_token_plot(study: Study) -> Plot | None:
    """Time to first token."""
    return _percentiles(study, "ttft_ms", "ttft", "Time to first token", "From the request's arrival.")


def gap_plot(study: Study) -> Plot | None:
    """Time between tokens."""
    text = "Between a request's tokens; tokens that come in one step share its time."
    return _percentiles(study, "itl_ms", "itl", "Gap between tokens", text)


def answer_plot(study: Study) -> Plot | None:
    """Time to the last token."""
    return _percentiles(study, "e2e_ms", "e2e", "Time to the whole answer", "From the request's arrival.")


def step_plot(study: Study) -> Plot | None:
    """Where the time of a decode step goes, where at least one row knows."""
    every = [row for row in study.ranked if number_at(row.result, "decode_step_ms")]
    rows = every[:MAX_BARS]
    if not any(at(row.result, "spec.time_shares") for row in rows):
        return None
    traces = [_stage(study, rows, stage, n) for n, stage in enumerate(STAGES)]
    traces.append(_whole(study, rows))
    return Plot(
        "steps",
        "Where the time of a decode step goes",
        "Median decode step in ms, by stage: draft proposes, verify is the target's pass, learn is what the "
        "drafter takes from it, other is acceptance, sampling and bookkeeping. Rows without drafts: one bar."
        + limited(every, MAX_BARS),
        traces,
        {
            "xaxis": axis("decode step (ms)", rangemode="tozero"),
            "yaxis": rows_axis(rows),
            "barmode": "stack",
            "showlegend": True,
        },
        bars_height(rows) + 40,
        names(study, rows),
    )


def _percentiles(study: Study, path: str, anchor: str, title: str, text: str) -> Plot | None:
    every = [row for row in study.ranked if number_at(row.result, f"{path}.p50")]
    rows = every[:MAX_BARS]
    if not rows:
        return None
    traces = [_range(rows, path)]
    traces += [_quantile(study, rows, path, n) for n in range(len(PERCENTILES))]
    return Plot(
        anchor,
        title,
        f"{text} Median (p50), 90th and 99th percentile of all requests, median of the repeats."
        + limited(every, MAX_BARS),
        traces,
        {
            "xaxis": axis(f"{title.lower()} (ms)", rangemode="tozero"),
            "yaxis": rows_axis(rows),
            "showlegend": True,
        },
        bars_height(rows) + 30,
        names(study, rows),
    )


def _range(rows: Sequence[Row], path: str) -> Trace:
    """A line from p50 to p99 for each row."""
    xs: list[float | None] = []
    ys: list[str | None] = []
    for row in rows:
        xs += [number_at(row.result, f"{path}.p50"), number_at(row.result, f"{path}.p99"), None]
        ys += [short(row), short(row), None]
    line = {"color": "$muted", "width": 2}
    return {
        "type": "scatter",
        "mode": "lines",
        "x": xs,
        "y": ys,
        "line": line,
        "showlegend": False,
        "hoverinfo": "skip",
    }


def _quantile(study: Study, rows: Sequence[Row], path: str, place: int) -> Trace:
    quantile = PERCENTILES[place]
    values = [number_at(row.result, f"{path}.{quantile}") for row in rows]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": quantile,
        "x": values,
        "y": [short(row) for row in rows],
        "hovertext": [
            f"{escaped(name(study, row))}<br>{quantile} {number(value)} ms"
            for row, value in zip(rows, values, strict=True)
        ],
        "hoverinfo": "text",
        "marker": {"color": f"$c{place}", "symbol": SYMBOLS[place], "size": 9},
    }


def _stage(study: Study, rows: Sequence[Row], stage: str, place: int) -> Trace:
    values = []
    for row in rows:
        share, whole = (
            number_at(row.result, f"spec.time_shares.{stage}"),
            number_at(row.result, "decode_step_ms"),
        )
        values.append(None if share is None or whole is None else share * whole)
    return _bars(study, rows, values, STAGES[stage], f"$c{place}", PATTERNS[place])


def _whole(study: Study, rows: Sequence[Row]) -> Trace:
    values = [
        None if at(row.result, "spec.time_shares") else number_at(row.result, "decode_step_ms")
        for row in rows
    ]
    return _bars(study, rows, values, WHOLE, "$muted", "")


def _bars(
    study: Study, rows: Sequence[Row], values: Sequence[float | None], title: str, color: str, pattern: str
) -> Trace:
    marker: Mapping[str, object] = {
        "color": color,
        "pattern": {"shape": pattern, "bgcolor": color, "fgcolor": "$back", "size": 6, "solidity": 0.25},
    }
    return {
        "type": "bar",
        "orientation": "h",
        "name": title,
        "y": [short(row) for row in rows],
        "x": list(values),
        "hovertext": [
            f"{escaped(name(study, row))}<br>{title} {number(value)} ms"
            for row, value in zip(rows, values, strict=True)
        ],
        "hoverinfo": "text",
        "marker": marker,
    }
