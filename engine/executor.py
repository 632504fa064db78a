"""Launches scheduled steps: packs the upload, resolves what must be on the host, submits the step to the
device.

Knows the order of these stages; neither what a step does nor when to launch one.
"""

from __future__ import annotations

from engine.batch import ScheduledStep, StepResult
from engine.device_queue import Published
from engine.futures import FutureMap, StepHandle, published
from engine.step import Step
from engine.table import RequestTable
from engine.upload import Uploader


class Executor:
    """The device side of the engine, as the loop sees it."""

    def __init__(self, table: RequestTable, uploader: Uploader, step: Step, futures: FutureMap) -> None:
        self._table = table
        self._uploader = uploader
        self._step = step
        self.futures = futures

    def launch(self, step: ScheduledStep) -> StepHandle:
        """Submit a step. Returns without waiting for the device unless a part reads exact host lengths."""
        host_lens = self.futures.host_lens(step)
        packed = self._uploader.pack(step)

        def work() -> Published:
            out = self._step.run(step, self._uploader.to_device(packed), host_lens)
            mirror = self._table.seq_lens if self.futures.needs_cpu_seq_lens else None
            return published((out.packed, *out.logprobs), mirror, out.observe, out.reused)

        return self.futures.publish(step, work, packed)

    def resolve(self, handle: StepHandle) -> StepResult:
        """The results of a launched step."""
        return self.futures.resolve(handle)
