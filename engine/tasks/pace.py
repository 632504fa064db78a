"""When the next request may be handed to an engine: at its own time, by a clock. Knows no engine.

Importable without torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

POLL_SECONDS = 0.05  # how long a wait lasts before Ctrl-C is looked for


@dataclass
class Pace:
    """Times count from `begin`. clock and sleep: exchanged in tests."""

    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    _start: float = field(default=0.0, init=False)

    def begin(self) -> None:
        """The run starts now."""
        self._start = self.clock()

    def due(self, at: float) -> bool:
        """Whether the moment `at` has come."""
        return at <= 0 or self.clock() - self._start >= at

    def late(self, at: float) -> float:
        """Seconds since the moment `at`; 0 where it has not come."""
        return max(0.0, self.clock() - self._start - at)

    def wait(self, at: float) -> None:
        """Nothing runs and the next request comes at `at`: sleep, but not for long."""
        self.sleep(max(0.0, min(POLL_SECONDS, at - (self.clock() - self._start))))
