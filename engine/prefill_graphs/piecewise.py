"""Passes whose pieces between attention calls are replayed from graphs; what is no prefill begins as before.

Knows sizes and lanes; how a pass is cut is in segments.py. Reads no length on the host: the count of tokens
is the shape of the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from backends.base import AttentionBackend, ModelOps
from engine.batch import ForwardBatch, Mode, SeqLens
from engine.graphs.capture import Capturer
from engine.metrics import EngineMetrics
from engine.models.base import Pass
from engine.models.source import Progress
from engine.passes import Passes
from engine.prefill_graphs.buckets import Buckets
from engine.prefill_graphs.lane import LaneMemory
from engine.prefill_graphs.segments import Segments, capture
from engine.prefill_graphs.sizing import Sizing
from engine.side_stream import side_stream

WHAT = "capturing prefill graphs"


@dataclass(frozen=True)
class Captures:
    """What lanes capture with. new: a capturer whose graphs may run beside those of all others."""

    buckets: Buckets
    page_size: int
    new: Callable[[], Capturer]


class Lane:
    """Captured sizes of one lane: passes of it follow each other, so they share static memory.

    Captures happen on a stream of the lane's own: graphs that may run at once must not share workspaces.
    """

    def __init__(self, begins: Passes, captures: Captures, device: torch.device) -> None:
        self._begins = begins
        self._page_size = captures.page_size
        self._capturer = captures.new()
        self._stream = side_stream(device)
        self._memory = LaneMemory(captures.buckets.sizes[-1], device)
        self._made: dict[tuple[int, ModelOps], Segments] = {}

    def begin(self, batch: ForwardBatch, ops: ModelOps, size: int) -> Pass:
        """Replay the pass, padded to `size`."""
        segments = self.segments(size, ops)
        self._memory.load(batch, size)
        return segments.replay(batch.input_ids.shape[0])

    def has(self, size: int, ops: ModelOps) -> bool:
        """Whether a size has been captured."""
        return (size, ops) in self._made

    def segments(self, size: int, ops: ModelOps) -> Segments:
        """The captured pass of a size; the first time it is captured."""
        key = size, ops
        if key not in self._made:
            with self._stream.detour():
                self._memory.clear(size)
                self._made[key] = capture(
                    self._begins, ops, self._memory, size, self._page_size, self._capturer
                )
        return self._made[key]


class PiecewisePasses(Passes):
    """Prefill passes from graphs, each lane with its own; sizes above the largest run eagerly and are
    counted."""

    def __init__(self, inner: Passes, captures: Captures, metrics: EngineMetrics) -> None:
        self._inner = inner
        self._captures = captures
        self._sizing = Sizing(captures.buckets, metrics)
        self._lanes: dict[int, Lane] = {}

    def begin(self, batch: ForwardBatch, ops: ModelOps, lane: int = 0) -> Pass:
        size = self._sizing.of(batch)
        if size is None:
            return self._inner.begin(batch, ops, lane)
        own = self._lane(lane, batch.input_ids.device)
        if not own.has(size, ops):
            with self._sizing.pause():
                own.segments(size, ops)
        return own.begin(batch, ops, size)

    @torch.inference_mode()
    def prepare(
        self, attentions: Sequence[AttentionBackend], device: torch.device, progress: Progress
    ) -> None:
        """Capture every size, largest first so that the others fit into its memory. attentions: of each
        lane."""
        sizes = self._captures.buckets.sizes[::-1]
        total = len(attentions) * len(sizes)
        for number, attention in enumerate(attentions):
            attention.init_forward_metadata(one_padding_token(device, self._captures.page_size))
            for done, size in enumerate(sizes, number * len(sizes)):
                progress(WHAT, done, total)
                self._lane(number, device).segments(size, attention.ops)
        progress(WHAT, total, total)

    def _lane(self, number: int, device: torch.device) -> Lane:
        if number not in self._lanes:
            self._lanes[number] = Lane(self._inner, self._captures, device)
        return self._lanes[number]


def one_padding_token(device: torch.device, page_size: int) -> ForwardBatch:
    """The smallest prefill pass that touches nothing but padding: it lets a backend settle."""
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    return ForwardBatch(
        mode=Mode.EXTEND,
        rows=zero,
        input_ids=zero,
        positions=zero,
        slots=zero,
        seq_lens=SeqLens(zero.int(), (0,), (0,)),
        query_start=torch.arange(2, dtype=torch.int32, device=device),
        query_lens=(1,),
        page_table=zero.int().unsqueeze(0),
        page_size=page_size,
    )
