"""When a graph is worth its capture: what runs often is captured, what runs seldom runs eagerly, and counts.

Knows counters and sizes; nothing of what is captured.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from engine.metrics import EngineMetrics

logger = logging.getLogger("syncless")
MOST_GRAPHS = 512  # each holds some megabytes of a GPU's memory


class Hesitation:
    """Decides about captures: at start, and while requests are served."""

    def __init__(
        self, patience: int, largest: int, metrics: EngineMetrics, has_room: Callable[[], bool]
    ) -> None:
        """patience: eager uses of a kind before its capture. largest: captured batch size. has_room: whether
        the device has memory for one more graph."""
        self._patience = patience
        self._largest = largest
        self._metrics = metrics
        self._has_room = has_room
        self._uses: Counter[Hashable] = Counter()
        self._at_once = False
        self._told: set[str] = set()

    def worth_it(self, kind: Hashable, graphs: int) -> bool:
        """Whether to capture now, for the use at hand; with "no" it is going to run eagerly. kind: what it
        has in common with batches of other sizes. graphs: how many there are."""
        self._uses[kind] += 1
        if not self._at_once and self._uses[kind] <= self._patience:
            return False
        if graphs >= MOST_GRAPHS:
            self._tell("full", f"{graphs} graphs are captured, the most there can be; others run eagerly")
            return False
        if not self._has_room():
            self._tell(
                "memory",
                f"{graphs} graphs are captured, and the device has no memory left for more: other steps run "
                "eagerly; a smaller cache.tokens or fewer graph.sizes make room",
            )
            return False
        return True

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, whatever is used is captured."""
        before, self._at_once = self._at_once, True
        try:
            yield
        finally:
            self._at_once = before

    @property
    def _serving(self) -> bool:
        """Before the first request, steps are only measured: nothing of them is told or counted."""
        return self._metrics.decode_steps > 0

    def too_large(self, count: int) -> None:
        """A batch of `count` requests fits into no size."""
        if not self._serving:
            return
        self._tell(
            "large",
            f"a decode step of {count} requests is larger than the largest captured one (graph.sizes ends at "
            f"{self._largest}): it runs eagerly, which takes longer; such steps are counted as "
            "eager_decode_steps",
        )

    def eager(self) -> None:
        """A decode step runs outside of its graph."""
        self._metrics.eager_decode_steps += self._serving

    @contextmanager
    def pause(self) -> Iterator[None]:
        """A capture: the host waits for the device, and, if requests are served, they wait for the host."""
        start = time.perf_counter()
        yield
        if self._serving:
            self._metrics.capture_pauses += 1
            self._metrics.capture_pause_seconds += time.perf_counter() - start

    def _tell(self, once: str, message: str) -> None:
        if once not in self._told:
            self._told.add(once)
            logger.warning(message)
