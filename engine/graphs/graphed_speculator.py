"""What a draft model does in a decode step as two graphs: drafting, and learning from the verification.

Knows the drafter by its contract. For drafters whose attention builds its metadata on the device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from engine.batch import DraftTree, SeqLens
from engine.graphs.graphed import GraphedCallable
from engine.graphs.hesitation import Hesitation
from engine.graphs.static_rows import StaticRows
from engine.modes import ModeContext
from speculative.base import Speculator
from speculative.views import DraftView, Observed, PrefillSeen

A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True)
class _Learned:
    view: DraftView
    seen: Observed


_FIXED = ("tokens", "rows", "relay", "page_table", "query_start", "draws")  # of a view


class GraphedSpeculator(Speculator):
    """Another drafter, replayed where it can be."""

    reads_cpu_seq_lens = False  # its inner one declares what it reads

    def __init__(
        self, inner: Speculator, context: ModeContext, rows: StaticRows, hesitation: Hesitation
    ) -> None:
        self.plan = inner.plan
        self._inner = inner
        self._rows = rows
        self._hesitation = hesitation
        self._longest = context.longest
        self._propose: GraphedCallable[DraftView, DraftTree] = GraphedCallable(
            inner.propose,
            context.capturer,
            fixed=_FIXED,
            quiet=rows.blank,
            shares_results=True,
            phase="propose",
        )
        self._observe: GraphedCallable[_Learned, None] = GraphedCallable(
            lambda learned: inner.observe(learned.view, learned.seen),
            context.capturer,
            fixed=tuple(f"view.{name}" for name in _FIXED),
            quiet=rows.blank,
            phase="observe",
        )

    def propose(self, view: DraftView) -> DraftTree:
        if view.width == 1 and not view.resume:  # nothing is drafted
            return self._inner.propose(view)
        graphed = self._ask(self._propose, self._sized(view))
        return self._inner.propose(view) if graphed is None else graphed[0]

    def observe(self, view: DraftView, seen: Observed) -> None:
        if self._ask(self._observe, _Learned(self._sized(view), seen)) is None:
            self._inner.observe(view, seen)

    def prefill(self, view: DraftView, seen: PrefillSeen) -> None:
        self._inner.prefill(view, seen)

    def _sized(self, view: DraftView) -> DraftView:
        """The view as every batch of its size has it."""
        lens = SeqLens(view.seq_lens.device, (self._longest,) * view.rows.shape[0])
        return replace(view, seq_lens=lens)

    def _ask(self, graphed: GraphedCallable[A, R], argument: A) -> tuple[R] | None:
        """What the graph answers; None where there is none, yet."""
        view = argument.view if isinstance(argument, _Learned) else argument
        assert isinstance(view, DraftView)
        if not self._rows.holds(view.rows):
            return None
        graph = graphed.graph(argument)
        kind = type(argument), view.width, view.resume, view.draws is None
        if graph is None and self._hesitation.worth_it(kind, len(graphed)):
            with self._hesitation.pause():
                graph = graphed.capture(argument)
        return None if graph is None else (graph.on(argument),)
