"""One captured size of a prefill pass: a graph before, between and after the attention calls.

Knows where a pass stops (engine/models/base.py) and nothing of who attends. Nothing here reads a length: the
real tokens are the first ones, and attention gets views of them.
Legend: S tokens of the captured size, T those of a pass, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from backends.base import ModelOps
from engine.errors import InternalError
from engine.graphs.capture import Captured, Capturer
from engine.models.base import AttentionCall, Pass
from engine.passes import Passes
from engine.prefill_graphs.lane import AUX, HIDDEN, LaneMemory

End = tuple[Tensor, Tensor | None]
ATTENDED = "attended"
PHASE = "prefill pieces"


@dataclass(frozen=True)
class Segments:
    """graphs[i] ends where calls[i] begins; the last one ends the pass. attended: [N, Hq * D], what
    graphs[i + 1] reads; hidden [N, H] and aux [N, n * H] or None: what the last one writes. All static."""

    size: int
    graphs: tuple[Captured, ...]
    calls: tuple[AttentionCall, ...]
    attended: Tensor
    hidden: Tensor
    aux: Tensor | None

    def replay(self, tokens: int) -> Pass:
        """A pass over what the lane was loaded with, of which `tokens` are real. What it returns holds until
        the lane's next pass."""
        attended = self.attended
        attended[tokens : self.size].zero_()  # padding must stay finite: its KV lies in the padding page
        for graph, call in zip(self.graphs, self.calls, strict=False):
            graph.replay()
            result = yield call if tokens == self.size else _first(call, tokens)
            attended[:tokens].copy_(result)
        self.graphs[-1].replay()
        return self.hidden[:tokens], None if self.aux is None else self.aux[:tokens]


def _first(call: AttentionCall, tokens: int) -> AttentionCall:
    return AttentionCall(call.q[:tokens], call.k[:tokens], call.v[:tokens], call.kv)


def capture(
    begins: Passes, ops: ModelOps, lane: LaneMemory, size: int, page_size: int, capturer: Capturer
) -> Segments:
    """Capture a pass of `size` tokens on the current stream, after an eager one that compiles kernels and
    sizes workspaces. The lane has to be clear."""
    begin = partial(begins.begin, ops=ops)
    hidden, aux = _eager(begin(lane.padded(size, page_size)), lane)
    kept = lane.like(HIDDEN, hidden), None if aux is None else lane.like(AUX, aux)
    graphs: list[Captured] = []
    calls: list[AttentionCall] = []
    one = begin(lane.padded(size, page_size))
    reached: AttentionCall | None = None
    while reached is not None or not graphs:
        graph, reached = capturer.capture(partial(_segment, one, reached, lane, kept), PHASE)
        graphs.append(graph)
        if reached is not None:  # attention is over before the next segment runs, which may use this memory
            q, k, v = (capturer.lend(x) for x in (reached.q, reached.k, reached.v))
            reached = replace(reached, q=q, k=k, v=v)
            calls.append(reached)
    for graph in graphs:
        graph.settle()
    return Segments(size, tuple(graphs), tuple(calls), _attended(lane, calls[0]), *kept)


def _eager(one: Pass, lane: LaneMemory) -> End:
    """The result of a pass whose attention yields zeros."""
    reached = _advance(one, None)
    while isinstance(reached, AttentionCall):
        reached = _advance(one, _attended(lane, reached)[: reached.q.shape[0]])
    return reached


def _segment(
    one: Pass, before: AttentionCall | None, lane: LaneMemory, kept: tuple[Tensor, Tensor | None]
) -> AttentionCall | None:
    """From one stop to the next; the last segment leaves the results in `kept` and returns None."""
    given = None if before is None else _attended(lane, before)[: before.q.shape[0]]
    reached = _advance(one, given)
    if isinstance(reached, AttentionCall):
        return reached
    for static, result in zip(kept, reached, strict=True):
        if (static is None) != (result is None):
            raise InternalError("a pass returned other states when it was captured than before")
        if static is not None and result is not None:
            static[: result.shape[0]].copy_(result)
    return None


def _advance(one: Pass, attended: Tensor | None) -> AttentionCall | End:
    try:
        return next(one) if attended is None else one.send(attended)
    except StopIteration as end:
        result: End = end.value
        return result


def _attended(lane: LaneMemory, call: AttentionCall) -> Tensor:
    return lane.buffer(ATTENDED, (call.q.shape[1] * call.q.shape[2],), call.q)
