"""A second line of device work: a stream on a GPU, the same line on the CPU.

Knows nothing of what the work is. Whatever one side makes and the other reads has to stay alive until `join`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


class SideStream(ABC):
    """Work beside the current stream. All of it may be captured: it waits by events, never on the host."""

    @abstractmethod
    def fork(self) -> None:
        """What is launched on it from now on runs after what the current stream has got so far."""

    @abstractmethod
    def join(self) -> None:
        """What the current stream gets from now on runs after what was launched on it so far."""

    @abstractmethod
    def use(self) -> AbstractContextManager[object]:
        """Launches inside go to it."""

    @contextmanager
    def detour(self) -> Iterator[None]:
        """Launches inside go to it, in order with those before and behind."""
        self.fork()
        with self.use():
            yield
        self.join()


class InLine(SideStream):
    """The CPU has one line only."""

    def fork(self) -> None:
        return None

    def join(self) -> None:
        return None

    def use(self) -> AbstractContextManager[object]:
        return nullcontext()


class CudaSide(SideStream):
    """A stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def fork(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def join(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def use(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)


def side_stream(device: torch.device) -> SideStream:
    """The one that suits a device."""
    return CudaSide(device) if device.type == "cuda" else InLine()
