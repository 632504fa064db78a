"""How long the stages of decode steps take: a clock on the CPU, events on CUDA. Off unless somebody asks.

Importable without torch. Knows names of stages and nothing of what they do.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from engine.lazy import lazy_import

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")

MAX_PENDING = 4096  # pairs of events that wait to be read


class StageTimes:
    """Seconds by stage. Nothing waits for the device while a step runs: events are read when the device has
    passed them, the last ones in `seconds`."""

    def __init__(self) -> None:
        self.on = False
        self.hidden = ""  # why stages cannot be told apart, one sentence: they lie within one graph
        self.cuda = False  # whether work runs on a stream
        self._total: dict[str, float] = {}
        self._pending: deque[tuple[str, torch.cuda.Event, torch.cuda.Event]] = deque()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of what runs inside to a stage."""
        if not self.on or self.hidden:
            yield
        elif self.cuda:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            yield
            end.record()
            self._pending.append((name, begin, end))
            if len(self._pending) > MAX_PENDING:
                self._drain(wait=False)
        else:
            start = time.perf_counter()
            yield
            self._add(name, time.perf_counter() - start)

    def seconds(self) -> dict[str, float]:
        """All of it so far; waits for the events of what was launched."""
        self._drain(wait=True)
        return dict(self._total)

    def _drain(self, *, wait: bool) -> None:
        while self._pending:
            name, begin, end = self._pending[0]
            if wait:
                end.synchronize()
            elif not end.query():  # type: ignore[no-untyped-call]
                return
            self._pending.popleft()
            self._add(name, begin.elapsed_time(end) / 1e3)

    def _add(self, name: str, seconds: float) -> None:
        self._total[name] = self._total.get(name, 0.0) + seconds
