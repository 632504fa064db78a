"""Ctrl-C, and other signals, as a request: the first lets the running step end, so that partial results can
be saved, the second stops at once. Knows nothing of what is being stopped.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, TextIO

CTRL_C = (signal.SIGINT,)
ANY_END = (signal.SIGINT, signal.SIGTERM)  # as schedulers and service managers end a program, too


class StopFlag:
    """`with StopFlag(stderr) as stop: ... if stop.requested: ...`; restores the former handlers at the end.

    signals: what asks for the stop. echo: seconds in which further signals are the first one again, where a
    launcher hands on what the terminal has sent already.
    """

    def __init__(
        self,
        stderr: TextIO,
        notice: str = "stopping; Ctrl-C again stops at once",
        signals: Sequence[signal.Signals] = CTRL_C,
        echo: float = 0.0,
    ) -> None:
        self.requested = False
        self._stderr = stderr
        self._notice = notice
        self._signals, self._echo = signals, echo
        self._first = -float("inf")
        self._former: dict[signal.Signals, Any] = {}

    def request(self) -> None:
        """Ask for the stop from the program's side (a reader that went away)."""
        self.requested = True

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handler
            self._former = {number: signal.signal(number, self._on_signal) for number in self._signals}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._former = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            if time.monotonic() - self._first >= self._echo:
                raise KeyboardInterrupt
            return
        self.requested, self._first = True, time.monotonic()
        print(f"\n{self._notice}", file=self._stderr, flush=True)
