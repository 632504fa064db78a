"""`graph=step`: the mode that captures whole decode steps.

Importable without torch; the graphs are made in whole_step.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.graphs.sized_mode import SizedGraph
from engine.lazy import lazy_import
from engine.modes import ModeContext

if TYPE_CHECKING:
    from engine.graphs import whole_step
    from engine.step import Step
else:
    whole_step = lazy_import("engine.graphs.whole_step")


class StepGraph(SizedGraph):
    """One graph launch a decode step, with every draft algorithm: attention builds its metadata on the
    device."""

    captures_step = True
    contents = ("propose", "forward", "accept", "commit", "observe", "results")

    def step(self, inner: Step, context: ModeContext) -> Step:
        self.announce("graph=step", context)
        context.metrics.stages.hidden = "a step graph is one launch: the stages in it are not timed apart"
        return whole_step.GraphedStep(inner, context, self.batch_sizes(context), self.hesitation(context))
