"""The captured size of each prefill pass, counted; what has none runs eagerly, which is said once.

Knows counters and sizes; nothing of what is captured.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from engine.batch import ForwardBatch, Mode
from engine.metrics import EngineMetrics
from engine.prefill_graphs.buckets import Buckets

log = logging.getLogger("syncless")


class Sizing:
    """One engine's choice of sizes."""

    def __init__(self, buckets: Buckets, metrics: EngineMetrics) -> None:
        self.buckets = buckets
        self._metrics = metrics
        self._warned = False

    def of(self, batch: ForwardBatch) -> int | None:
        """The size that a pass is padded to; None: it is no prefill, or runs eagerly."""
        tokens = batch.input_ids.shape[0]
        if batch.mode is not Mode.EXTEND or tokens == 0:
            return None
        size = self.buckets.fit(tokens)
        if size is None:
            self._eager(tokens)
            return None
        self._metrics.graph_prefills += 1
        self._metrics.prefill_padding += size - tokens
        return size

    @contextmanager
    def pause(self) -> Iterator[None]:
        """A capture while requests wait: the host waits for the device meanwhile."""
        start = time.perf_counter()
        yield
        self._metrics.capture_pauses += 1
        self._metrics.capture_pause_seconds += time.perf_counter() - start

    def _eager(self, tokens: int) -> None:
        self._metrics.eager_prefills += 1
        if not self._warned:
            self._warned = True
            log.warning(
                "a prefill pass of %d tokens fits no captured size (pcg.buckets: %s) and runs eagerly, as do "
                "others like it; they are counted as eager_prefills",
                tokens,
                ", ".join(map(str, self.buckets.sizes)),
            )
