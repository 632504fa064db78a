"""How the host talks to a device: submit work in order, ask for its result later.

The CUDA queue runs work on a stream and copies results to pinned memory on another one. The CPU queue is
deferred: work runs only when its result is demanded, so reading unfinished data fails on the CPU too.
Knows nothing of what the work is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class Published:
    """What submitted work returns: tensors to bring to the host, and work that may run after they left.
    reused: later work writes to the same tensors, so they leave before anything else runs."""

    tensors: Tensors
    after: Callable[[], None] | None = None
    reused: bool = False


Work = Callable[[], Published]


class Ticket(ABC):
    """A claim on the result of submitted work."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether `result` would return without waiting."""

    @abstractmethod
    def result(self) -> Tensors:
        """Wait, then return the result tensors on the host. May be called more than once."""


class DeviceQueue(ABC):
    """Runs submitted work in order. One producer thread."""

    @abstractmethod
    def submit(self, work: Work) -> Ticket:
        """Queue `work`; the tensors that it publishes come back through the ticket, on the host.

        Its `after` runs next, in order, without holding the tensors back.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for everything that was submitted."""


class _DeferredTicket(Ticket):
    def __init__(self, queue: DeferredQueue, work: Work) -> None:
        self._queue = queue
        self._work: Work | None = work
        self._value: Tensors = ()
        self._error: BaseException | None = None

    def run(self) -> None:
        assert self._work is not None
        work, self._work = self._work, None
        try:
            with torch.inference_mode():
                published = work()
                kept = published.tensors
                self._value = tuple(t.clone() for t in kept) if published.reused else kept
                if published.after is not None:
                    published.after()
        except BaseException as error:
            self._error = error
            raise

    def ready(self) -> bool:
        return self._work is None

    def result(self) -> Tensors:
        if self._work is not None:
            self._queue.run_until(self)
        if self._error is not None:
            raise self._error
        return self._value


class DeferredQueue(DeviceQueue):
    """The CPU as a device: first in, first out, and nothing runs before it is asked for."""

    def __init__(self) -> None:
        self._pending: deque[_DeferredTicket] = deque()

    def submit(self, work: Work) -> Ticket:
        ticket = _DeferredTicket(self, work)
        self._pending.append(ticket)
        return ticket

    def run_until(self, ticket: _DeferredTicket) -> None:
        while not ticket.ready():
            self._pending.popleft().run()

    def synchronize(self) -> None:
        while self._pending:
            self._pending.popleft().run()


class _CudaTicket(Ticket):
    """Owns the device tensors until their copies were observed, so that the allocator cannot reuse them."""

    def __init__(self, device_tensors: Tensors, host: Tensors, event: torch.cuda.Event) -> None:
        self._device_tensors: Tensors | None = device_tensors
        self._host = host
        self._event = event

    def ready(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def result(self) -> Tensors:
        self._event.synchronize()
        self._device_tensors = None
        return self._host


class CudaQueue(DeviceQueue):
    """A forward stream for the work and a copy stream for the results; the host never waits in `submit`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._forward = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copy = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def submit(self, work: Work) -> Ticket:
        # Buffers that were filled on the default stream (weights, tables) are ordered before their first use.
        self._forward.wait_stream(torch.cuda.default_stream(self._device))
        with torch.inference_mode(), torch.cuda.stream(self._forward):
            published = work()
        values = published.tensors
        self._copy.wait_stream(self._forward)
        with torch.inference_mode(), torch.cuda.stream(self._copy):
            host = tuple(torch.empty(v.shape, dtype=v.dtype, pin_memory=True) for v in values)
            for source, target in zip(values, host, strict=True):
                target.copy_(source, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._copy)
        if published.after is not None:
            with torch.inference_mode(), torch.cuda.stream(self._forward):
                published.after()
        return _CudaTicket(values, host, event)

    def synchronize(self) -> None:
        self._forward.synchronize()
        self._copy.synchronize()


def make_queue(device: torch.device) -> DeviceQueue:
    """The queue that suits a device; anything that is not CUDA is driven like the CPU."""
    return CudaQueue(device) if device.type == "cuda" else DeferredQueue()
