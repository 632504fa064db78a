"""`graph=step`: options and facts of the mode that captures whole decode steps.

Importable without torch; the graphs are made in whole_step.py.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.build import number
from engine.graphs.hesitation import Hesitation
from engine.graphs.sizes import AUTO, BatchSizes, chosen_sizes, size_problems
from engine.lazy import lazy_import
from engine.modes import GraphMode, ModeContext

if TYPE_CHECKING:
    from engine.graphs import whole_step
    from engine.step import Step
else:
    whole_step = lazy_import("engine.graphs.whole_step")

logger = logging.getLogger("syncless")


class StepGraph(GraphMode):
    """One graph launch a decode step, for none, n-gram and EAGLE3 alike."""

    captures_step = True
    contents = ("propose", "forward", "accept", "commit", "observe", "results")

    @dataclass(frozen=True)
    class Config:
        """sizes: batch sizes to capture, "auto" or a list. capture_after: eager steps of another width or
        sampling class before its graph is captured."""

        sizes: str | tuple[int, ...] = AUTO
        capture_after: int = number(16, ge=0)

    config: StepGraph.Config

    @classmethod
    def check(cls, config: Config) -> list[str]:
        """What is wrong with a Config, one sentence each."""
        return size_problems(config.sizes)

    @classmethod
    def planned_sizes(cls, config: Config, max_running: int) -> Sequence[int]:
        """The batch sizes that a configuration comes to."""
        return chosen_sizes(config.sizes, max_running)

    def sizes(self, max_running: int) -> tuple[int, ...]:
        return chosen_sizes(self.config.sizes, max_running)

    def step(self, inner: Step, context: ModeContext) -> Step:
        sizes = BatchSizes(self.sizes(context.max_running))
        context.metrics.stages.hidden = "a step graph is one launch: its stages are not timed apart"
        if context.device == "cpu":
            logger.warning(
                "graph=step without a GPU replays recorded operations: for checks, no faster than graph=none"
            )
        patience = self.config.capture_after
        hesitation = Hesitation("graph", patience, sizes.largest, context.metrics)
        return whole_step.GraphedStep(inner, context, sizes, hesitation)
