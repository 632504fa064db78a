"""Steps on rows that nobody uses yet: to compile, to capture or to time what serving will run.

Knows how to run a step and to put everything back; not who asks. Legend: b requests, w width.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from engine.batch import Mode, ScheduledStep
from engine.device_queue import DeviceQueue, Published
from engine.kv_pool import KVPool
from engine.sampling.asked import SamplingClass
from engine.step import Step
from engine.table import RequestTable
from engine.upload import BatchRows, ChunkInputs, StepInputs

LENGTH = 128  # tokens that the rows pretend to hold
BURST = 4  # steps launched at once on a GPU, where launching overlaps computing


class ScratchSteps:
    """Decode steps of rows 1..b before any request has come. Their pages are page 0, the padding page.

    `untouched` puts back what they wrote: rows of the table, counts for penalties, relayed values, page 0,
    and drafts' scratch, each of which holds one value throughout while the engine is new.
    """

    def __init__(
        self, table: RequestTable, step: Step, pools: Sequence[KVPool], queue: DeviceQueue, mirrored: bool
    ) -> None:
        """mirrored: whether some part reads exact lengths on the host."""
        self._table = table
        self._step = step
        self._pools = pools
        self._queue = queue
        self._mirrored = mirrored
        self._burst = BURST if table.tokens.is_cuda else 1
        self._preparing = 0.0

    @property
    def max_batch(self) -> int:
        return self._table.size.rows - 1

    def prepare(self, batch: int, width: int, resume: bool) -> None:
        """Let steps of this kind do beforehand what only the first would do, such as capturing a graph."""
        step, _ = self._step_of(batch, width, resume)

        def work() -> Published:
            self._step.prepare(step)
            return Published(())

        start = time.perf_counter()
        self._queue.submit(work)
        self._queue.synchronize()
        self._preparing += time.perf_counter() - start

    def clock(self) -> float:
        """Time that stands still while steps are prepared: what is done once costs no step anything."""
        return time.perf_counter() - self._preparing

    def seconds(self, batch: int, width: int, resume: bool) -> float:
        """Wall time of one step, what the drafter learns from it included."""
        self.prepare(batch, width, resume)
        step, inputs = self._step_of(batch, width, resume)
        start = time.perf_counter()
        tickets = [self._queue.submit(lambda: self._work(step, inputs)) for _ in range(self._burst)]
        tickets[-1].result()
        self._queue.synchronize()
        return (time.perf_counter() - start) / self._burst

    def decode(self, batch: int, width: int, resume: bool, sampling: SamplingClass) -> None:
        """One step, to its end."""
        step, inputs = self._step_of(batch, width, resume)
        self._run(replace(step, sampling=sampling), inputs)

    def prefill(self, *tokens: int) -> None:
        """One pass of prompts in rows 1, 2, ..., of so many tokens each, to its end."""
        device, count = self._table.tokens.device, len(tokens)
        rows = torch.arange(1, count + 1, device=device)
        lens = torch.tensor(tokens, device=device)
        ends = lens.cumsum(0)
        places = torch.arange(sum(tokens), device=device) - (ends - lens).repeat_interleave(lens)
        step = ScheduledStep(
            0, Mode.EXTEND, tuple(range(1, count + 1)), (0,) * count, tokens, (True,) * count
        )
        starts = functional.pad(ends, (1, 0)).int()
        chunk = ChunkInputs(rows.repeat_interleave(lens), places, rows - 1, ends - 1)
        self._run(step, StepInputs(BatchRows(rows, starts), None, chunk))

    def _run(self, step: ScheduledStep, inputs: StepInputs) -> None:
        self._queue.submit(lambda: self._work(step, inputs)).result()
        self._queue.synchronize()

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Whatever steps run inside leave no trace."""
        written = [tensor for tensor in self._written() if tensor.numel()]
        before = [tensor.flatten()[:1].item() for tensor in written]
        try:
            yield
        finally:
            self._queue.synchronize()
            with torch.inference_mode():
                for tensor, value in zip(written, before, strict=True):
                    tensor.fill_(value)

    def _step_of(self, batch: int, width: int, resume: bool) -> tuple[ScheduledStep, StepInputs]:
        rows = tuple(range(1, batch + 1))
        length = min(LENGTH, self._table.size.context // 2)
        each = (length,) * batch
        step = ScheduledStep(
            0, Mode.VERIFY, rows, each, (width,) * batch, (True,) * batch, width=width, resume=resume
        )
        device = self._table.tokens.device
        starts = torch.arange(0, batch * width + 1, width, dtype=torch.int32, device=device)
        return step, StepInputs(BatchRows(torch.tensor(rows, device=device), starts), None, None)

    def _work(self, step: ScheduledStep, inputs: StepInputs) -> Published:
        self._table.seq_lens[1 : len(step.rows) + 1] = step.bounds[0]
        out = self._step.run(step, inputs, step.bounds if self._mirrored else None)
        return Published((out.packed,), out.observe, out.reused)

    def _written(self) -> Iterator[Tensor]:
        table = self._table
        yield from (table.tokens, table.seq_lens, *table.relay.values())
        if table.columns.output_counts is not None:
            yield table.columns.output_counts
        for pool in self._pools:
            for layer in pool.layers:
                for side in (layer.k, layer.v):
                    yield side[: table.size.page_size]
                    yield side[pool.first_scratch :]
