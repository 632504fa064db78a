"""When a graph is worth its capture: what runs often is captured, what runs seldom runs eagerly, and counts.

Knows counters and sizes; nothing of what is captured.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from engine.metrics import EngineMetrics

logger = logging.getLogger("syncless")
MOST_GRAPHS = 512  # each holds some megabytes of a GPU's memory


class Hesitation:
    """Decides about captures while requests are served."""

    def __init__(self, patience: int, largest: int, metrics: EngineMetrics) -> None:
        """patience: eager uses of a kind before its capture. largest: captured batch size."""
        self._patience = patience
        self._largest = largest
        self._metrics = metrics
        self._uses: Counter[Hashable] = Counter()
        self._serving = True
        self._told: set[str] = set()

    def worth_it(self, kind: Hashable, graphs: int) -> bool:
        """Whether to capture now, for the use at hand; with "no" it is going to run eagerly. graphs: how many
        there are."""
        if graphs >= MOST_GRAPHS:
            self._tell(
                "full", f"{graphs} graphs are captured, the most that are kept; other steps run eagerly"
            )
            return False
        self._uses[kind] += 1
        return self._uses[kind] > self._patience or not self._serving

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """No request waits inside: whatever is used is captured."""
        serving, self._serving = self._serving, False
        try:
            yield
        finally:
            self._serving = serving

    def too_large(self, count: int) -> None:
        """A batch of `count` requests fits into no size."""
        self._tell(
            "large",
            f"a decode step of {count} requests is larger than the largest captured one (graph.sizes ends at "
            f"{self._largest}): it runs eagerly, which takes longer; such steps are counted as "
            "eager_decode_steps",
        )

    def eager(self) -> None:
        """A decode step runs outside of its graph."""
        self._metrics.eager_decode_steps += 1

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
