"""The decode step as one graph for each batch size, width and sampling class: one launch a step.

What the host decides (page entries, the rows of a changed batch) is written before the replay, in stream
order. Knows the step by its contract, nothing of what it is made of. Legend: B requests, W width.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from torch import Tensor

from engine.batch import Mode, ScheduledStep
from engine.graphs.graphed import Graph, GraphedCallable
from engine.graphs.hesitation import Hesitation
from engine.graphs.sizes import BatchSizes
from engine.graphs.static_rows import StaticRows
from engine.modes import ModeContext
from engine.sampling.asked import SamplingClass
from engine.step import Step, StepOutput
from engine.upload import BatchRows, StepInputs

Results = tuple[Tensor, ...]  # packed, then logprobs, as in StepOutput


@dataclass(frozen=True)
class Kind:
    """What a graph of the step is made for, besides its batch size."""

    size: int
    width: int
    resume: bool
    sampling: SamplingClass

    @classmethod
    def of(cls, step: ScheduledStep, size: int) -> Kind:
        return cls(size, step.width, step.resume, step.sampling)

    @property
    def any_size(self) -> Hashable:
        """What it has in common with other sizes: if one of them comes often, all are worth a capture."""
        return self.width, self.resume, self.sampling

    def step(self, longest: int) -> ScheduledStep:
        """A step of this kind over padding rows. longest: the bound that its buffers are sized by."""
        each = range(self.size)
        return ScheduledStep(
            step_id=0,
            mode=Mode.VERIFY,
            rows=tuple(0 for _ in each),
            bounds=tuple(longest for _ in each),
            query_lens=tuple(self.width for _ in each),
            emits=tuple(True for _ in each),
            width=self.width,
            resume=self.resume,
            sampling=self.sampling,
        )


@dataclass(frozen=True)
class _Call:
    """The argument of the graphed step."""

    batch: BatchRows
    kind: Kind


class _Decode:
    """The function that is captured: a decode step from its rows to its results."""

    def __init__(self, inner: Step, longest: int) -> None:
        self._inner = inner
        self._longest = longest

    def __call__(self, call: _Call) -> Results:
        out = self._inner.decode(call.kind.step(self._longest), call.batch, None)
        if out.observe is not None:
            out.observe()
        return (out.packed, *out.logprobs)


class GraphedStep(Step):
    """Another step, whose decode steps are replayed where they can be."""

    def __init__(self, inner: Step, context: ModeContext, sizes: BatchSizes, hesitation: Hesitation) -> None:
        self._inner = inner
        self._sizes = sizes
        self._hesitation = hesitation
        self._rows = StaticRows(sizes.largest, inner.device)
        self._graphs: dict[Kind, Graph[_Call, Results]] = {}
        self._graphed = GraphedCallable(
            _Decode(inner, context.longest), context.capturer, fixed=("batch",), quiet=self._rows.blank
        )

    def prepare(self, step: ScheduledStep) -> None:
        with self._hesitation.at_once():
            self._graph(step)

    def run(self, step: ScheduledStep, inputs: StepInputs, host_lens: tuple[int, ...] | None) -> StepOutput:
        if step.mode is not Mode.VERIFY or not step.rows:
            return self._inner.run(step, inputs, host_lens)
        graph = self._graph(step)
        if graph is None:
            self._hesitation.eager()
            return self._inner.run(step, inputs, host_lens)
        self._inner.write(inputs)
        self._rows.load(inputs.batch)
        packed, *logprobs = graph.again()
        count = len(step.rows)
        return StepOutput(packed[:count], tuple(t[: count * step.width] for t in logprobs), reused=True)

    def _graph(self, step: ScheduledStep) -> Graph[_Call, Results] | None:
        """The graph for this step; made now if steps like it come often; None: it runs eagerly."""
        size = self._sizes.fit(len(step.rows))
        if size is None:
            self._hesitation.too_large(len(step.rows))
            return None
        kind = Kind.of(step, size)
        found = self._graphs.get(kind)
        if found is None and self._hesitation.worth_it(kind.any_size, len(self._graphs)):
            with self._hesitation.pause():
                found = self._capture(kind)
        return found

    def _capture(self, kind: Kind) -> Graph[_Call, Results]:
        call = _Call(self._rows.padded(kind.size, kind.width), kind)
        graph = self._graphs[kind] = self._graphed.capture(call)
        return graph
