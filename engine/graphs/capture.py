"""Captures device work once and replays it: a CUDA graph on a GPU, a list of operations on the CPU.

Knows nothing of what the work is. What holds on both: inside a capture nothing may read a device value on the
host, and a replay sees the same tensors at the same addresses with whatever they hold by then.
"""

from __future__ import annotations

import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import torch
from torch import Tensor

from engine.graphs.cost import CaptureCost
from engine.graphs.recording import Recording, record

T = TypeVar("T")
LEAST_FREE = 512 << 20  # bytes of device memory below which no further graph is made


class Captured(ABC):
    """Captured work. Its results lie in the tensors that the capture returned, until the next replay."""

    @abstractmethod
    def replay(self) -> None:
        """Run it again, in stream order. Does not wait."""

    def settle(self) -> None:
        """Do now what the first replay would take longer for. May run the work."""
        return None


class Capturer(ABC):
    """Captures on one device; all that it captured share memory, so only one may run at a time."""

    def __init__(self) -> None:
        self.costs: dict[str, CaptureCost] = {}  # by phase

    def capture(self, work: Callable[[], T], phase: str = "other") -> tuple[Captured, T]:
        """Run `work` into a graph; returns the graph and what `work` returned, whose tensors are its results.

        Run `work` eagerly once before, on the same stream: a first run compiles kernels, sizes workspaces and
        may wait, which a capture must not. What it returned has to be kept alive as long as the graph is.
        phase: what the cost is booked under.
        """
        start = time.perf_counter()
        with _no_collection():
            captured, result, size = self._capture(work)
        cost = self.costs.setdefault(phase, CaptureCost())
        cost.captures += 1
        cost.seconds += time.perf_counter() - start
        cost.bytes += size
        return captured, result

    def has_room(self) -> bool:
        """Whether the device has memory for another graph, with some left for everybody else."""
        return True

    def lend(self, result: Tensor) -> Tensor:
        """A captured result without keeping its memory, which later captures may then use for theirs. It has
        to be read before any work of this capturer that was captured after it runs."""
        return result

    def beside(self) -> Capturer:
        """Another one with memory of its own, whose captures may run while this one's do. One cost for
        both."""
        other = self._another()
        other.costs = self.costs
        return other

    @abstractmethod
    def _capture(self, work: Callable[[], T]) -> tuple[Captured, T, int]:
        """(graph, result, bytes of new device memory)."""

    @abstractmethod
    def _another(self) -> Capturer:
        """A new one on the same device."""


class _CudaGraph(Captured):
    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        self._graph = graph

    def replay(self) -> None:
        self._graph.replay()

    def settle(self) -> None:
        self._graph.replay()  # a graph travels to the device with its first launch


class CudaCapturer(Capturer):
    """CUDA graphs over one memory pool. Capture the largest size first: the others then fit into its memory.

    Captures on the current stream, which must not be the default one. Other streams may take part if they
    wait for it first and it waits for them last.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._broken: list[torch.cuda.CUDAGraph] = []

    def _capture(self, work: Callable[[], T]) -> tuple[Captured, T, int]:
        torch.cuda.synchronize(self._device)
        before = torch.cuda.mem_get_info(self._device)[0]
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            result = work()
            graph.capture_end()
        except BaseException:
            self._abandon(graph)
            raise
        taken = before - torch.cuda.mem_get_info(self._device)[0]
        return _CudaGraph(graph), result, max(0, taken)  # another process may have given memory back

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a broken capture, which raises, too, and would hide the reason.

        It raises before torch has told its allocator of the end. That would go on asking the dead graph where
        to allocate, and answer the next empty_cache with an internal error: so it is told here.
        """
        pool, self._pool = self._pool, torch.cuda.graph_pool_handle()
        try:
            graph.capture_end()
        except RuntimeError:
            self._broken.append(graph)  # the allocator of pinned memory cannot be told, and goes on asking
            device = torch.cuda.current_device()
            with suppress(RuntimeError):  # it knows already: what failed came after the capture
                torch._C._cuda_endAllocateToPool(device, pool)
                torch._C._cuda_releasePool(device, pool)

    def lend(self, result: Tensor) -> Tensor:
        storage = result.untyped_storage()
        memory = torch.as_tensor(_Borrowed(storage.data_ptr(), storage.nbytes()), device=result.device)
        typed = memory.view(result.dtype)
        return typed.as_strided(result.shape, result.stride(), result.storage_offset())

    def has_room(self) -> bool:
        free: int = torch.cuda.mem_get_info(self._device)[0]
        return free > LEAST_FREE

    def _another(self) -> Capturer:
        return CudaCapturer(self._device)


class _Borrowed:
    """Device memory in the words of the CUDA array interface (version 3): whoever makes an array of it does
    not own it."""

    def __init__(self, pointer: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (pointer, False),
            "strides": None,
            "version": 3,
        }


class _CpuGraph(Captured):
    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def replay(self) -> None:
        self._recording.replay()


class CpuCapturer(Capturer):
    """The CPU's stand-in, for checks and not for speed: the same rules, the same use of static tensors."""

    def _capture(self, work: Callable[[], T]) -> tuple[Captured, T, int]:
        recording, result = record(work)
        return _CpuGraph(recording), result, 0

    def _another(self) -> Capturer:
        return CpuCapturer()


@contextmanager
def _no_collection() -> Iterator[None]:
    """A collection inside a capture could free graphs, events or pinned memory: the driver would refuse."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def make_capturer(device: torch.device) -> Capturer:
    """The capturer that suits a device."""
    return CudaCapturer(device) if device.type == "cuda" else CpuCapturer()
