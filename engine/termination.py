"""SIGTERM, by which `timeout`, containers and schedulers end a program, as the wish that Ctrl-C is, and when
a further signal is no second wish. Knows nothing of what is ended.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
HANDED_ON = 1.0  # seconds: `timeout` tells a program and its group, a scheduler a sweep and its jobs


class Wish:
    """When the first signal came, and of which kind. terminated: whether any was SIGTERM."""

    def __init__(self, echo: float = 0.0) -> None:
        """echo: seconds in which further signals of any kind are the first one again; SIGTERM, which machines
        hand on, has HANDED_ON at least."""
        self._echo = echo
        self._first = -float("inf")
        self.terminated = False

    def first(self, number: int) -> None:
        """The signal that expresses it."""
        self._first, self.terminated = time.monotonic(), number == signal.SIGTERM

    def again(self, number: int) -> bool:
        """Whether a further signal is a second wish, and not the first one handed on."""
        self.terminated = self.terminated or number == signal.SIGTERM
        echo = max(self._echo, HANDED_ON) if self.terminated else self._echo
        return time.monotonic() - self._first >= echo


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt meanwhile, once for as long as it may be handed on. Does nothing off
    the main thread, or where SIGTERM is ignored or handled already."""
    outside = threading.current_thread() is not threading.main_thread()
    if outside or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    wish = Wish()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if wish.again(number):
            wish.first(number)
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
