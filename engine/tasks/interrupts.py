"""Ctrl-C as a request: the first lets the running step end, so that partial results can be saved.

The second one stops at once. Knows nothing of what is being stopped.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, TextIO


class StopFlag:
    """`with StopFlag(stderr) as stop: ... if stop.requested: ...`; restores the former handler at the end."""

    def __init__(self, stderr: TextIO, notice: str = "stopping; Ctrl-C again stops at once") -> None:
        self.requested = False
        self._stderr = stderr
        self._notice = notice
        self._former: Any = None

    def request(self) -> None:
        """Ask for the stop from the program's side (a reader that went away)."""
        self.requested = True

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handler
            self._former = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)
            self._former = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        print(f"\n{self._notice}", file=self._stderr, flush=True)
