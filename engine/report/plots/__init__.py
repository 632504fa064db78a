"""The plots of a report as plain plotly figures; a plot exists only where its data do.

Knows which plots there are, not how any is drawn.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.report.plots.base import Plot
from engine.report.plots.drafts import accept_plot, positions_plot
from engine.report.plots.grid import heat_plot
from engine.report.plots.latency import answer_plot, first_token_plot, gap_plot, step_plot
from engine.report.plots.speed import load_plot, pareto_plot, speed_plot
from engine.report.study import Study

MAKERS: tuple[Callable[[Study], Plot | None], ...] = (
    speed_plot,
    load_plot,
    pareto_plot,
    heat_plot,
    first_token_plot,
    gap_plot,
    answer_plot,
    accept_plot,
    positions_plot,
    step_plot,
)


def plots(study: Study) -> list[Plot]:
    """All that the study has data for, in the order of the page."""
    return [plot for plot in (make(study) for make in MAKERS) if plot is not None]
