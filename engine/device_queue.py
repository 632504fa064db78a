"""How the host talks to a device: submit work in order, ask for its result later.

The CUDA queue runs work on a stream and copies results to pinned memory. The CPU queue is deferred: work runs
only when its result is demanded, so reading unfinished data fails on the CPU too. Knows nothing of what the
work is.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import InternalError
from engine.pinned import Lease, PinnedRing
from engine.stream_clock import StreamClock

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

    def release(self) -> None:
        """What `result` returned is read: its memory may serve another ticket."""
        return None


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

    @abstractmethod
    def busy_seconds(self) -> float:
        """Time that the device has spent on submitted work, as far as is known without waiting. Gaps within
        one piece of work, where the host launches too slowly, count as spent on it."""


class _DeferredTicket(Ticket):
    def __init__(self, queue: DeferredQueue, work: Work) -> None:
        self._queue = queue
        self._work: Work | None = work
        self._value: Tensors = ()
        self._error: BaseException | None = None

    def run(self) -> None:
        assert self._work is not None
        work, self._work = self._work, None
        start = time.perf_counter()
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
        finally:
            self._queue.busy += time.perf_counter() - start

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
        self.busy = 0.0

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

    def busy_seconds(self) -> float:
        return self.busy


class _CudaTicket(Ticket):
    """Owns the device tensors until their copies were observed, so that the allocator cannot reuse them."""

    def __init__(self, tensors: Tensors, lease: Lease, ring: PinnedRing, event: torch.cuda.Event) -> None:
        self._device_tensors: Tensors | None = tensors
        self._lease: Lease | None = lease
        self._ring = ring
        self._event = event

    def ready(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def result(self) -> Tensors:
        if self._lease is None:
            raise InternalError("the result of a step was asked for after it had been released")
        self._event.synchronize()
        self._device_tensors = None
        return self._lease.tensors

    def release(self) -> None:
        if self._lease is not None:
            self._event.synchronize()  # a fence: the copy into this memory is over
            self._ring.give_back(self._lease)
            self._lease = None


class CudaQueue(DeviceQueue):
    """A forward stream for the work and a copy stream for the results; the host never waits in `submit`.

    Results in memory that the next work writes to leave on the forward stream itself: in order, and without
    an event that the device would have to wait for.
    """

    def __init__(self, device: torch.device) -> None:
        self._default = torch.cuda.default_stream(device)
        self._forward = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copy = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._ring = PinnedRing()
        self._clock = StreamClock()

    def submit(self, work: Work) -> Ticket:
        # Buffers that were filled on the default stream (weights, tables) are ordered before their first use.
        # In steady state it is empty, and the device is spared an event before every step.
        if not self._default.query():
            self._forward.wait_stream(self._default)
        with torch.inference_mode(), torch.cuda.stream(self._forward), self._clock.span():
            published = work()
            ticket = self._send(published)
            if published.after is not None:
                published.after()
        return ticket

    def _send(self, published: Published) -> Ticket:
        """Bring results to the host."""
        stream = self._forward
        if not published.reused:
            stream = self._copy
            stream.wait_stream(self._forward)
        lease = self._ring.lease(published.tensors)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            for source, target in zip(published.tensors, lease.tensors, strict=True):
                target.copy_(source, non_blocking=True)
            event.record(stream)
        return _CudaTicket(published.tensors, lease, self._ring, event)

    def synchronize(self) -> None:
        self._forward.synchronize()
        self._copy.synchronize()

    def busy_seconds(self) -> float:
        return self._clock.seconds()


def make_queue(device: torch.device) -> DeviceQueue:
    """The queue that suits a device; anything that is not CUDA is driven like the CPU."""
    return CudaQueue(device) if device.type == "cuda" else DeferredQueue()
