"""`tbo=two_batch`: a pass runs as two half batches whose layers are interleaved on two streams.

Free of torch: options and the warning; how passes are split and driven is in engine/two_batches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from backends.two_batch import TwoBatchAttention
from engine.build import number
from engine.lazy import lazy_import
from engine.modes import BatchMode, ModeContext
from engine.two_batches.split import Cutter

if TYPE_CHECKING:
    from backends.base import AttentionBackend
    from engine.passes import Driver, Passes
    from engine.two_batches import driver
else:
    driver = lazy_import("engine.two_batches.driver")

log = logging.getLogger("syncless")


class TwoBatch(BatchMode):
    """Both halves attend with a backend of their own; they meet before the head."""

    splits_batch = True
    drawback: ClassVar[str] = (
        "one device has no communication between layers that the other half could hide, and two halves read "
        "the weights twice"
    )

    @dataclass(frozen=True)
    class Config:
        """A pass with fewer requests or tokens runs as one batch."""

        min_requests: int = number(2, ge=2)
        min_tokens: int = number(32, ge=2)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._cutter = Cutter(config.min_requests, config.min_tokens)

    def attention(self, make: Callable[[], AttentionBackend]) -> AttentionBackend:
        return TwoBatchAttention(make(), make(), self._cutter.parts)

    def whole(self, width: int) -> int:
        return self._cutter.whole(width)

    def driver(self, begins: Passes, attention: AttentionBackend, context: ModeContext) -> Driver:
        log.warning("tbo=two_batch: nothing to overlap: %s; compare with tbo=none", self.drawback)
        return driver.TwoBatches(begins, attention, self._cutter, context.metrics)
