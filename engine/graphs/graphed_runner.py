"""The target's decode passes as graphs, with planning outside of them.

Knows the runner and attention by their contracts. Legend: B requests.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from engine.batch import ForwardBatch, Mode, SeqLens
from engine.graphs.graphed import Graph, GraphedCallable
from engine.graphs.hesitation import Hesitation
from engine.graphs.static_rows import StaticRows
from engine.modes import ModeContext
from engine.runner import ForwardResult, ModelRunner


@dataclass(frozen=True)
class _Call:
    """plan: what attention answered to plan_graph."""

    batch: ForwardBatch
    plan: Hashable


class GraphedRunner(ModelRunner):
    """Another runner, whose verify passes over static rows are replayed where they can be."""

    def __init__(
        self, inner: ModelRunner, context: ModeContext, rows: StaticRows, hesitation: Hesitation
    ) -> None:
        super().__init__(inner.model, inner.attention, inner.pool, inner.driver)
        self._inner = inner
        self._rows = rows
        self._hesitation = hesitation
        self._longest = context.longest
        self._graphed: GraphedCallable[_Call, ForwardResult] = GraphedCallable(
            lambda call: inner.forward(call.batch),
            context.capturer,
            fixed=("batch.rows", "batch.query_start", "batch.page_table"),
            quiet=rows.blank,
            shares_results=True,
            phase="forward",
        )

    def forward(self, batch: ForwardBatch) -> ForwardResult:
        if batch.mode is not Mode.VERIFY or not batch.size:
            return self._inner.forward(batch)
        if self._rows.holds(batch.rows):
            call = self._call(batch)
            graph = self._graphed.graph(call) or self._made(call)
            if graph is not None:
                return graph.on(call)
        self._hesitation.eager()
        return self._inner.forward(batch)

    def _call(self, batch: ForwardBatch) -> _Call:
        """What the graph is asked; planning sees the batch as it is."""
        plan = self.attention.plan_graph(batch)
        lens = SeqLens(batch.seq_lens.device, (self._longest,) * batch.size)
        return _Call(replace(batch, seq_lens=lens, planned=True), plan)

    def _made(self, call: _Call) -> Graph[_Call, ForwardResult] | None:
        """A new graph, if calls like this one come often."""
        kind = call.batch.width, call.batch.tree_mask is None
        if not self._hesitation.worth_it(kind, len(self._graphed)):
            return None
        with self._hesitation.pause():
            return self._graphed.capture(call)
