"""How busy the device is at present: the share of recent wall time in which it executed steps.

Knows two clocks, the wall's and the device's time at work (engine.device_queue), and no device. For a run as
a whole the counters of engine.metrics give the same share, from differences.
"""

from __future__ import annotations

from collections import deque

WINDOW = 64  # results


class Occupancy:
    """A window over the latest results, from the one WINDOW results ago to the last one.

    Time at work is what the device's clock had passed when a result was read: the newest step may be missing
    from it, as one older step was at the window's begin. A pause without requests empties the window, so idle
    time is no part of any. On a GPU it is time between two events on the stream: exact where a step is one
    graph; where the host launches a step piece by piece, gaps between the pieces count as work.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._marks: deque[tuple[float, float]] = deque(maxlen=window + 1)

    def note(self, wall: float, busy: float) -> None:
        """A result was read at `wall` seconds, when the device had been at work for `busy` seconds in all."""
        self._marks.append((wall, busy))

    def rest(self) -> None:
        """No request is left."""
        self._marks.clear()

    @property
    def share(self) -> float | None:
        """0 to 1; None before the second result."""
        if len(self._marks) < 2:
            return None
        (since, before), (now, busy) = self._marks[0], self._marks[-1]
        return min(1.0, (busy - before) / (now - since)) if now > since else None
