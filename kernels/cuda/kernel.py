"""A kernel in CUDA C++ as its launcher keeps it: compiled and loaded once for each device, and counted.
Knows no operation.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from engine.compiled import COMPILED
from kernels.cuda.compile import Source, compiled
from kernels.cuda.driver import Arg, Function, launch, load


class CudaKernel:
    """The kernel `name` of a source, in blocks of `threads` with `shared_bytes` of dynamic memory. Whoever
    makes one keeps it: each object loads its own. Raises CudaCompileError, CudaDriverError."""

    def __init__(self, source: Source, name: str, threads: int, shared_bytes: int) -> None:
        self.source, self.name = source, name
        self.threads, self.shared_bytes = threads, shared_bytes
        self._functions: dict[int, Function] = {}
        self._lock = threading.Lock()

    def build(self) -> None:
        """Compile into the cache on disk, for another process to load: this one needs no device."""
        compiled(self.source)

    def prepare(self) -> Function:
        """Compile and load for the current device, if that has not been done; nothing is launched."""
        device = torch.cuda.current_device()
        function = self._functions.get(device)
        return function or self._loaded(device)

    def _loaded(self, device: int) -> Function:
        with self._lock:
            if device not in self._functions:
                self._functions[device] = load(compiled(self.source), self.name, self.shared_bytes)
                COMPILED.add()
            return self._functions[device]

    def __call__(self, grid: int, args: Sequence[Arg], *, early: bool = False) -> None:
        """Launch `grid` blocks on torch's current stream (see `driver.launch` on arguments)."""
        launch(self.prepare(), grid, self.threads, args, early=early)
