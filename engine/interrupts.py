"""Holds Ctrl-C back while something must not be torn in two. Knows nothing of what that is."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class HeldInterrupt:
    """`with HeldInterrupt() as held:` Ctrl-C raises KeyboardInterrupt at the end, or at `held.check()`.

    The second one raises at once. Does nothing off the main thread, within another one, or where the program
    has a handler of its own.
    """

    __slots__ = ("_former", "_pending")

    def __init__(self) -> None:
        self._pending = False
        self._former: object = None

    def check(self) -> None:
        """Raise the KeyboardInterrupt that is held back, if any."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def __enter__(self) -> HeldInterrupt:
        former = signal.getsignal(signal.SIGINT)
        if former is signal.default_int_handler and threading.current_thread() is threading.main_thread():
            self._former = former
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._former is not None:
            self._former = None
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if kind is None:
            self.check()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._pending:
            raise KeyboardInterrupt
        self._pending = True
