"""Runs a pass as two halves, layer by layer in turns, the second on a stream of its own.

Knows passes and attention by their contracts. All of it may be captured: the streams meet by events. On the
CPU the halves take turns in line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from backends.base import AttentionBackend
from engine.batch import ForwardBatch
from engine.metrics import EngineMetrics
from engine.passes import Driver, OneBatch, Passes
from engine.side_stream import InLine, SideStream, side_stream
from engine.two_batches.split import Cutter

log = logging.getLogger("syncless")


class Half:
    """One half of a pass in progress; it keeps what its stream works on alive until it is dropped."""

    def __init__(
        self, batch: ForwardBatch, attention: AttentionBackend, begins: Passes, lane: int, stream: SideStream
    ) -> None:
        self._batch = batch
        self._attention = attention
        self._stream = stream
        with stream.use():
            attention.init_forward_metadata(batch)
            self._pass = begins.begin(batch, attention.ops, lane)
        self._attended: Tensor | None = None
        self.result: tuple[Tensor, Tensor | None] | None = None

    def advance(self) -> bool:
        """To the next stop and over its attention; False at the end, when `result` is there."""
        with self._stream.use():
            try:
                one = self._pass
                call = next(one) if self._attended is None else one.send(self._attended)
            except StopIteration as end:
                self.result = end.value
                return False
            self._attended = self._attention.forward(call.q, call.k, call.v, call.kv, self._batch)
            return True


class TwoBatches(Driver):
    """Two halves where a pass is large enough and has a boundary to be cut at, else one batch, counted."""

    def __init__(
        self,
        begins: Passes,
        attention: AttentionBackend,
        cutter: Cutter,
        metrics: EngineMetrics,
        make_stream: Callable[[torch.device], SideStream] = side_stream,
    ) -> None:
        first, second = attention.children()
        self._begins = begins
        self._lanes = first, second
        self._whole = OneBatch(begins, first)
        self._cutter = cutter
        self._metrics = metrics
        self._make_stream = make_stream
        self._side: SideStream | None = None
        self._warned = False

    def run(self, batch: ForwardBatch) -> tuple[Tensor, Tensor | None]:
        parts = self._cutter.parts(batch)
        if len(parts) == 1:
            self._unsplit(batch)
            return self._whole.run(batch)
        self._metrics.split_passes += 1
        return self._both(parts)

    def attentions(self) -> tuple[AttentionBackend, ...]:
        return self._lanes

    def _both(self, parts: tuple[ForwardBatch, ...]) -> tuple[Tensor, Tensor | None]:
        if self._side is None:
            self._side = self._make_stream(parts[0].rows.device)
        self._side.fork()
        halves = [
            Half(part, attention, self._begins, lane, stream)
            for lane, (part, attention, stream) in enumerate(
                zip(parts, self._lanes, (InLine(), self._side), strict=True)
            )
        ]
        running = list(halves)
        while running:
            running = [half for half in running if half.advance()]
        self._side.join()
        return _joined(halves)

    def _unsplit(self, batch: ForwardBatch) -> None:
        self._metrics.unsplit_passes += 1
        if not self._warned and batch.size > 1:  # one request is not for a threshold to split
            self._warned = True
            log.warning(
                "tbo=two_batch: a pass of %d requests and %d tokens runs as one batch, as do others below "
                "tbo.min_requests=%d or tbo.min_tokens=%d; they are counted as unsplit_passes",
                batch.size,
                batch.input_ids.shape[0],
                self._cutter.min_requests,
                self._cutter.min_tokens,
            )


def _joined(halves: list[Half]) -> tuple[Tensor, Tensor | None]:
    results = [half.result for half in halves]
    hidden = torch.cat([result[0] for result in results if result is not None])
    aux = [result[1] for result in results if result is not None and result[1] is not None]
    return hidden, torch.cat(aux) if aux else None
