"""`graph=forward`: the mode that captures forwards one by one, for attention that plans on the host.

Importable without torch; the graphs are made in the modules beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.graphs.sized_mode import SizedGraph
from engine.lazy import lazy_import
from engine.modes import ModeContext

if TYPE_CHECKING:
    from engine.graphs import graphed_runner, graphed_speculator, padded_step, static_rows
    from engine.runner import ModelRunner
    from engine.step import Step
    from speculative.base import Speculator
else:
    graphed_runner = lazy_import("engine.graphs.graphed_runner")
    graphed_speculator = lazy_import("engine.graphs.graphed_speculator")
    padded_step = lazy_import("engine.graphs.padded_step")
    static_rows = lazy_import("engine.graphs.static_rows")


class ForwardGraph(SizedGraph):
    """A graph for the target's verify pass, and for what a draft model does where its attention builds its
    metadata on the device; planning and acceptance run eagerly between them."""

    captures_forward = True
    contents = ("forward",)

    def __init__(self, config: SizedGraph.Config) -> None:
        super().__init__(config)
        self._rows: static_rows.StaticRows | None = None  # shared by the three parts that this mode wraps

    def runner(self, inner: ModelRunner, context: ModeContext) -> ModelRunner:
        self.announce("graph=forward", context)
        device = inner.pool.layers[0].k.device
        self._rows = static_rows.StaticRows(self.batch_sizes(context).largest, device)
        self._waits = self.hesitation(context)
        return graphed_runner.GraphedRunner(inner, context, self._rows, self._waits)

    def speculator(self, inner: Speculator, context: ModeContext) -> Speculator:
        if not context.draft_on_device:
            return inner
        assert self._rows is not None, "the runner is wrapped first"
        return graphed_speculator.GraphedSpeculator(inner, context, self._rows, self._waits)

    def step(self, inner: Step, context: ModeContext) -> Step:
        assert self._rows is not None, "the runner is wrapped first"
        return padded_step.PaddedStep(inner, self.batch_sizes(context), self._rows, self._waits)
