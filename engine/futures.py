"""FutureMap: the promises of launched steps. It publishes a step's results and resolves them once.

It also keeps the exact host mirror of the lengths, but only when some injected part declared that it reads
them. Knows nothing of scheduling; tokens themselves never pass through here from step to step (they stay in
the table).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from engine.batch import Mode, ScheduledStep, StepResult, TokenLogprob
from engine.device_queue import DeviceQueue, Published, Ticket, Work
from engine.errors import InternalError
from engine.metrics import EngineMetrics

T = TypeVar("T")
POISONED = -7777  # debug: what a consumed result buffer holds
_TAIL = 5  # columns behind the tokens of a packed row: count, finish, accepted, drafted, signal


@dataclass
class StepHandle:
    """A launched step; owns its inputs and outputs until its completion was observed."""

    step: ScheduledStep
    ticket: Ticket
    owned: object
    consumed: bool = False


class FutureMap:
    """Tickets of launched steps, in launch order.

    debug: every result is consumed exactly once and in order, and its buffer is poisoned afterwards.
    """

    def __init__(
        self, queue: DeviceQueue, metrics: EngineMetrics, *, needs_cpu_seq_lens: bool, debug: bool
    ) -> None:
        self.needs_cpu_seq_lens = needs_cpu_seq_lens
        self._queue = queue
        self._metrics = metrics
        self._debug = debug
        self._last: StepHandle | None = None
        self._read: StepHandle | None = None
        self._resolved = 0
        self._before: float | None = None  # what the device worked for nobody: compiling, measuring

    def publish(self, step: ScheduledStep, work: Work, owned: object) -> StepHandle:
        """Submit a step's work; `owned` is what must live until it is done."""
        if self._before is None:
            self._before = self._queue.busy_seconds()
        self._last = StepHandle(step, self._queue.submit(work), owned)
        return self._last

    def host_lens(self, step: ScheduledStep) -> tuple[int, ...] | None:
        """Exact lengths of the rows of a step that is about to be launched; None when nobody reads them.

        Waits for the last launched step to publish: this is the price of a part that declares EXACT.
        """
        if not self.needs_cpu_seq_lens:
            return None
        if step.mode is not Mode.VERIFY:
            return step.bounds
        if self._last is None:
            raise InternalError("a verify step was launched before any prefill")
        self._wait(self._last, later_queued=False)
        mirror = self._last.ticket.result()[-1]
        return tuple(mirror[list(step.rows)].tolist())

    def resolve(self, handle: StepHandle) -> StepResult:
        """The results of a launched step, on the host. A wait with a later step queued is back-pressure."""
        if self._debug:
            self._check_order(handle)
        self._wait(handle, later_queued=handle is not self._last)
        tensors = handle.ticket.result()
        result = _to_result(handle.step, tensors, mirrored=self.needs_cpu_seq_lens)
        if self._debug:
            with torch.inference_mode():  # the buffer was made in it
                tensors[0].fill_(POISONED)
        handle.owned = None
        if self._read is not None:
            self._read.ticket.release()
        self._read = handle  # a step later: the mirror of the lengths may be asked for until then
        worked = self._queue.busy_seconds() - (self._before or 0.0)
        self._metrics.device_worked(time.perf_counter(), worked)
        return result

    def _wait(self, handle: StepHandle, *, later_queued: bool) -> None:
        if handle.ticket.ready():
            return
        start = time.perf_counter()
        handle.ticket.result()
        self._metrics.waited(time.perf_counter() - start, later_queued=later_queued)

    def _check_order(self, handle: StepHandle) -> None:
        if handle.consumed:
            raise InternalError(f"the result of step {handle.step.step_id} was consumed twice")
        if handle.step.step_id < self._resolved:
            raise InternalError(f"step {handle.step.step_id} was resolved after {self._resolved}")
        handle.consumed = True
        self._resolved = handle.step.step_id


def published(
    tensors: Sequence[Tensor],
    mirror: Tensor | None,
    after: Callable[[], None] | None,
    reused: bool = False,
) -> Published:
    """What a step's work returns: results, then the mirror of the lengths if somebody reads it."""
    extra = () if mirror is None else (mirror.clone(),)
    return Published((*tensors, *extra), after, reused)


def _to_result(step: ScheduledStep, tensors: Sequence[Tensor], *, mirrored: bool) -> StepResult:
    """Spread the rows that emitted over all rows of the step."""
    packed, *logprobs = tensors[:-1] if mirrored else tensors
    values = packed.numpy()
    counts, *tails = values[:, -_TAIL:].T.tolist()
    runs = [run[:count] for run, count in zip(values[:, :-_TAIL].tolist(), counts, strict=True)]
    logs = _logprobs(runs, packed.shape[1] - _TAIL, logprobs) if logprobs else None
    if not all(step.emits):
        at = [i for i, emits in enumerate(step.emits) if emits]
        runs, tails = _spread(step, at, runs), [_zeros(step, at, column) for column in tails]
        logs = None if logs is None else _spread(step, at, logs)
    finish, accepted, drafted, signal = tails
    return StepResult(step.step_id, runs, finish, accepted, drafted, signal, logs)


def _spread(step: ScheduledStep, at: Sequence[int], lists: Sequence[list[T]]) -> list[list[T]]:
    found: list[list[T]] = [[] for _ in step.rows]
    for i, own in zip(at, lists, strict=True):
        found[i] = own
    return found


def _zeros(step: ScheduledStep, at: Sequence[int], numbers: Sequence[int]) -> list[int]:
    found = [0] * len(step.rows)
    for i, number in zip(at, numbers, strict=True):
        found[i] = number
    return found


def _logprobs(
    runs: Sequence[Sequence[int]], width: int, tensors: Sequence[Tensor]
) -> list[list[TokenLogprob]]:
    """One entry an emitted token; tensors hold a row a position, `width` a request."""
    own = tensors[0].tolist()
    tops = [list(zip(i, v, strict=True)) for i, v in zip(*(t.tolist() for t in tensors[1:]), strict=True)]
    return [
        [
            TokenLogprob(token, own[i], tuple(tops[i]) if tops else ())
            for i, token in enumerate(run, n * width)
        ]
        for n, run in enumerate(runs)
    ]
