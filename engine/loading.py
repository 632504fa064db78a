"""Progress of reading weights, and of what else takes long at start, as lines of text for people who wait.

Knows nothing of what is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable

QUIET_SECONDS = 1.0  # a line a second at most, and none for what is done sooner


class LineProgress:
    """A progress callback (what, done, total) that says now and then how far it is, and where it has said so,
    that it has come to its end."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._last = clock()
        self._said = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        now = self._clock()
        if not done:  # begins
            self._last, self._said = now, ""
        ended = done >= total > 0
        if now - self._last < QUIET_SECONDS and not (ended and self._said == what):
            return
        self._last, self._said = now, "" if ended else what
        share = f"{100 * done // total}%" if total else f"{done}"
        self._say(f"{what}: {share}")
