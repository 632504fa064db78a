"""Plots of throughput: by row, by load, and against latency. Knows rows and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.report.figures import ITL, SPEED
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

LOADS = ("task.concurrency", "arrivals.rate", "scheduler.max_running", "workload.limit")
NEAR = 0.1  # of an axis: names of points that are closer would cover each other


def speed_plot(study: Study) -> Plot | None:
    """Output tokens/s by row."""
    every = [row for row in study.ranked if _speed(row)]
    rows = every[:MAX_BARS]
    if not rows:
        return None
    values = [_speed(row) for row in rows]
    trace: Trace = {
        "type": "bar",
        "orientation": "h",
        "y": [short(row) for row in rows],
        "x": values,
        "hovertext": [_hover(study, row) for row in rows],
        "hoverinfo": "text",
        "marker": {"color": "$c0"},
        "error_x": _spread(rows),
    }
    ends = [max(SPEED.repeats(row.result)) for row in rows]
    return Plot(
        "speed",
        "Throughput of each row",
        "Output tokens per second, median of the repeats; the whiskers go from the slowest to the fastest "
        "repeat." + limited(every, MAX_BARS),
        [trace, beside(rows, ends, [number(value) for value in values])],
        {"xaxis": bars_axis("output tokens/s", ends), "yaxis": rows_axis(rows), "showlegend": False},
        bars_height(rows),
        names(study, rows),
    )


def load_plot(study: Study) -> Plot | None:
    """Output tokens/s by requests in flight, where the cells differ in that."""
    rows = [row for row in study.ranked if _speed(row)]
    key = next((key for key in LOADS if len(_levels(rows, key)) > 1), None)
    if key is None:
        return None
    keys = [other for other in study.keys if other != key]
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        if _is_number(row.settings.get(key)):
            grouped.setdefault(_series(study, row, keys), []).append(row)
    lines = {title: own for title, own in grouped.items() if len(own) > 1}
    if not lines:
        return None
    kept = list(lines.items())[:MAX_LINES]
    more = f" The best {MAX_LINES} of {len(lines)} series." if len(lines) > MAX_LINES else ""
    levels = sorted(_levels(rows, key))
    x = axis(key, type="log", tickvals=levels, ticktext=[number(level) for level in levels])
    return Plot(
        "load",
        f"Throughput by {key}",
        f"Output tokens per second, median of the repeats.{more}",
        [_line(study, title, own, key, n) for n, (title, own) in enumerate(kept)],
        {"xaxis": x, "yaxis": axis("output tokens/s", rangemode="tozero"), "showlegend": True},
        420 + 22 * len(kept),
    )


def pareto_plot(study: Study) -> Plot | None:
    """Throughput against the gap between a request's tokens, and the rows that no other beats in both."""
    rows = [row for row in study.ranked if _speed(row) and _gap(row)]
    if len(rows) < 2:
        return None
    front = pareto_front(rows)
    off = [row for row in rows if row not in front]
    traces = [_points(study, front, "on the front", "$c0", "diamond", "lines+markers+text")]
    if off:
        traces.append(_points(study, off, "beaten in both", "$c1", "circle-open", "markers"))
    best = ", ".join(short(row) for row in front)
    return Plot(
        "pareto",
        "Latency and throughput",
        "Up and to the left is better. The line joins the rows that no other row beats in both: "
        f"{best}. The numbers are those of the table.",
        traces,
        {
            "xaxis": axis("gap between a request's tokens, p50 (ms)", rangemode="tozero"),
            "yaxis": axis("output tokens/s", rangemode="tozero"),
            "showlegend": True,
        },
        480,
    )


def pareto_front(rows: Sequence[Row]) -> list[Row]:
    """Rows that no other row beats in throughput without a longer gap, by growing gap."""
    front: list[Row] = []
    for row in sorted(rows, key=lambda row: (_gap(row), -_speed(row))):
        if not front or _speed(row) > _speed(front[-1]):
            front.append(row)
    return front


def _points(study: Study, rows: Sequence[Row], title: str, color: str, symbol: str, mode: str) -> Trace:
    return {
        "type": "scatter",
        "mode": mode,
        "name": title,
        "x": [_gap(row) for row in rows],
        "y": [_speed(row) for row in rows],
        "text": _apart(rows),
        "textposition": "top center",
        "hovertext": [_hover(study, row) for row in rows],
        "hoverinfo": "text",
        "marker": {"color": color, "symbol": symbol, "size": 10},
        "line": {"color": color, "shape": "linear"},
        "cliponaxis": False,
    }


def _apart(rows: Sequence[Row]) -> list[str]:
    """The numbers of rows, but of points that lie on each other only the first one's."""
    most = [max(measure(row) for row in rows) for measure in (_gap, _speed)]
    taken: list[tuple[float, float]] = []
    texts = []
    for row in rows:
        x, y = (measure(row) / top for measure, top in zip((_gap, _speed), most, strict=True))
        free = all(abs(x - a) > NEAR or abs(y - b) > NEAR for a, b in taken)
        taken += [(x, y)] if free else []
        texts.append(short(row) if free else "")
    return texts


def _line(study: Study, title: str, rows: Sequence[Row], key: str, place: int) -> Trace:
    ordered = sorted(rows, key=lambda row: row.settings[key])
    return {
        **series(title, place, title),
        "x": [row.settings[key] for row in ordered],
        "y": [_speed(row) for row in ordered],
        "hovertext": [_hover(study, row) for row in ordered],
        "hoverinfo": "text",
    }


def _series(study: Study, row: Row, keys: Sequence[str]) -> str:
    """A row's name without its number and without the load."""
    return name(study, row, keys).replace(short(row), "", 1).strip() or "all rows"


def _spread(rows: Sequence[Row]) -> Mapping[str, Any]:
    repeats = [SPEED.repeats(row.result) for row in rows]
    middle = [_speed(row) for row in rows]
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(own) - value for own, value in zip(repeats, middle, strict=True)],
        "arrayminus": [value - min(own) for own, value in zip(repeats, middle, strict=True)],
        "color": "$text",
        "thickness": 1.2,
        "width": 3,
    }


def _hover(study: Study, row: Row) -> str:
    gap = _gap(row)
    lines = [escaped(name(study, row)), f"{number(_speed(row))} output tokens/s"]
    lines += [f"token gap p50 {number(gap)} ms"] if gap else []
    return "<br>".join([*lines, *map(escaped, study.warnings.get(row.number, ()))])


def _levels(rows: Sequence[Row], key: str) -> set[float]:
    values: list[Any] = [row.settings.get(key) for row in rows]
    return {value for value in values if _is_number(value) and value > 0}


def _speed(row: Row) -> float:
    """0 where it is not known."""
    return max(SPEED.number(row.result) or 0.0, 0.0)


def _gap(row: Row) -> float:
    """0 where it is not known."""
    return max(ITL.number(row.result) or 0.0, 0.0)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
