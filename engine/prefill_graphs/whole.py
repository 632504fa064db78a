"""Prefill passes as one graph each, attention included: for attention that plans on the device.

Knows a driver and the fields of a batch. What a graph takes from the host are bounds, which size its
launches: tokens, requests, query lengths; the true ones are read on the device.
Legend: S tokens of the captured size, B requests of a pass, R those of the captured size, P pages a row.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from dataclasses import dataclass

import torch
from torch import Tensor

from backends.base import AttentionBackend
from engine.batch import ForwardBatch, SeqLens
from engine.graphs.capture import Captured, Capturer
from engine.metrics import EngineMetrics
from engine.models.source import Progress
from engine.passes import Driver
from engine.prefill_graphs.buckets import Buckets
from engine.prefill_graphs.lane import AUX, HIDDEN, LaneMemory
from engine.prefill_graphs.sizing import Sizing
from engine.side_stream import side_stream

WHAT = "capturing whole prefill passes"
PHASE = "prefill"


@dataclass(frozen=True)
class Limits:
    """requests: captured counts, ascending, the padding request not among them; context: positions of a table
    row; longest: an upper bound of a request's tokens before a pass."""

    requests: tuple[int, ...]
    context: int
    longest: int
    page_size: int

    def fit(self, requests: int) -> int:
        """The captured count for a pass; the last one is that of the largest batch."""
        return self.requests[bisect_left(self.requests, requests)]


class WholeMemory(LaneMemory):
    """Inputs of whole passes. The request behind the real ones owns the padding tokens: row 0's pages, no
    prefix; those behind it have no tokens."""

    def __init__(self, largest: int, limits: Limits, device: torch.device) -> None:
        super().__init__(largest, device)
        most = limits.requests[-1] + 1
        pages = -(-limits.context // limits.page_size)
        self._limits = limits
        self._pages = torch.zeros(most, pages, dtype=torch.int32, device=device)
        self._lens = torch.zeros(most, dtype=torch.int32, device=device)
        self._starts = torch.zeros(most + 1, dtype=torch.int32, device=device)
        self._rows = torch.arange(most, device=device)

    def load(self, batch: ForwardBatch, size: int) -> None:
        super().load(batch, size)
        count = batch.size
        self._pages[:count].copy_(batch.page_table.index_select(0, batch.rows))
        self._pages[count].zero_()
        self._lens[:count].copy_(batch.seq_lens.device)
        self._lens[count:].zero_()
        self._starts[: count + 1].copy_(batch.query_start)
        self._starts[count + 1 :].fill_(size)

    def clear(self, size: int) -> None:
        super().clear(size)
        for part in (self._pages, self._lens, self._starts):
            part.zero_()
        self._starts[1:].fill_(size)  # a token of nobody would have no attention, which may then be NaN

    def whole(self, size: int, requests: int) -> ForwardBatch:
        """A pass of `size` tokens in `requests` requests and the padding one. Its host lengths are bounds."""
        count = requests + 1
        return dataclasses.replace(
            self.padded(size, self._limits.page_size),
            rows=self._rows[:count],
            seq_lens=SeqLens(self._lens[:count], (self._limits.longest,) * count),
            query_start=self._starts[: count + 1],
            query_lens=(size,) * count,
            page_table=self._pages,
        )


@dataclass(frozen=True)
class _Graph:
    captured: Captured
    hidden: Tensor
    aux: Tensor | None


class WholePrefill(Driver):
    """Another driver, whose prefill passes are replayed where they fit a captured size."""

    def __init__(
        self, inner: Driver, buckets: Buckets, limits: Limits, capturer: Capturer, metrics: EngineMetrics
    ) -> None:
        self._inner = inner
        self._sizing = Sizing(buckets, metrics)
        self._limits = limits
        self._capturer = capturer
        self._graphs: dict[tuple[int, int], _Graph] = {}
        self._memory: WholeMemory | None = None

    def run(self, batch: ForwardBatch) -> tuple[Tensor, Tensor | None]:
        """What a replay returns holds until the next one."""
        size = self._sizing.of(batch)
        if size is None:
            return self._inner.run(batch)
        memory = self._static(batch.rows.device)
        key = size, self._limits.fit(batch.size)
        if key not in self._graphs:
            with self._sizing.pause():
                self._graph(memory, *key)
        graph = self._graphs[key]
        memory.load(batch, size)
        graph.captured.replay()
        tokens = batch.input_ids.shape[0]
        return graph.hidden[:tokens], None if graph.aux is None else graph.aux[:tokens]

    def attentions(self) -> tuple[AttentionBackend, ...]:
        return self._inner.attentions()

    @torch.inference_mode()
    def prepare(self, device: torch.device, progress: Progress) -> None:
        """Capture every size, largest first so that the others fit into its memory."""
        memory = self._static(device)
        every = [(s, r) for s in self._sizing.buckets.sizes[::-1] for r in self._limits.requests[::-1]]
        for done, (size, requests) in enumerate(every):
            progress(WHAT, done, len(every))
            self._graph(memory, size, requests)
        progress(WHAT, len(every), len(every))

    def _static(self, device: torch.device) -> WholeMemory:
        if self._memory is None:
            self._stream = side_stream(device)
            self._memory = WholeMemory(self._sizing.buckets.sizes[-1], self._limits, device)
        return self._memory

    def _graph(self, memory: WholeMemory, size: int, requests: int) -> _Graph:
        key = size, requests
        if key not in self._graphs:
            with self._stream.detour():
                memory.clear(size)
                self._graphs[key] = self._capture(memory, size, requests)
        return self._graphs[key]

    def _capture(self, memory: WholeMemory, size: int, requests: int) -> _Graph:
        """After an eager run, which compiles kernels and sizes workspaces."""
        hidden, aux = self._inner.run(memory.whole(size, requests))
        kept = memory.like(HIDDEN, hidden), None if aux is None else memory.like(AUX, aux)

        def work() -> None:
            for static, result in zip(kept, self._inner.run(memory.whole(size, requests)), strict=True):
                if static is not None and result is not None:
                    static[:size].copy_(result)

        captured, _ = self._capturer.capture(work, PHASE)
        captured.settle()
        return _Graph(captured, *kept)
