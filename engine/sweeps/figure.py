"""The figure that a sweep's jobs are compared by while it runs. Knows results by dotted names only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.conf_tree import conf_tree
from engine.report.figures import FIGURES, Figure
from engine.report.numbers import measure
from engine.sweeps.axes import value_at
from engine.sweeps.cells import Cell


@dataclass(frozen=True)
class MainFigure:
    """name: dotted, in result.json; null: there is none to compare. lower: whether less of it is better."""

    name: str | None
    lower: bool = False

    def of(self, result: Mapping[str, Any]) -> float | None:
        """The number; None where the result has none."""
        value = None if self.name is None else value_at(result, self.name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def shown(self, value: float) -> str:
        """With its name and unit as in the report: "output 57.6 tokens/s"."""
        figure = next((f for f in FIGURES if f.path == self.name and not f.word), None)
        if figure is None:
            figure = Figure(str(self.name), str(self.name), "", str(self.name))
        scaled = value * figure.scale
        whole = not figure.unit and scaled.is_integer()
        return f"{figure.label} {measure(int(scaled) if whole else scaled, figure.unit)}"

    def better(self, one: float, other: float) -> bool:
        return one < other if self.lower else one > other


def main_figure(cell: Cell, asked: str | None, better: str) -> MainFigure:
    """What was asked for, else what the cell's task names as its own."""
    option = conf_tree().groups["task"].get(cell.choices.get("task", ""))
    task = None if option is None else option.part_class()
    return MainFigure(asked or getattr(task, "main_figure", None), better == "lower")
