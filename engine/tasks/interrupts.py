"""Ctrl-C and SIGTERM as a request: the first lets the running step end, so that partial results can be saved,
the second stops at once. Knows nothing of what is being stopped.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, TextIO

from engine.termination import SIGNALS, Wish

NOTICE = "stopping at the end of the running step; a second signal stops at once"


class StopFlag:
    """`with StopFlag(stderr) as stop: ... if stop.requested: ...`; restores the former handlers at the end.

    echo: seconds in which further signals are the first one again, where a launcher hands on what the
    terminal has sent already.
    """

    def __init__(self, stderr: TextIO, notice: str = NOTICE, echo: float = 0.0) -> None:
        self.requested = False
        self._stderr = stderr
        self._notice = notice
        self._wish = Wish(echo)
        self._former: dict[signal.Signals, Any] = {}

    @property
    def terminated(self) -> bool:
        """Whether SIGTERM was among the signals: the whole program is to end."""
        return self._wish.terminated

    def request(self) -> None:
        """Ask for the stop from the program's side (a reader that went away)."""
        self.requested = True

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handler
            self._former = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._former = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            if self._wish.again(number):
                raise KeyboardInterrupt
            return
        self.requested = True
        self._wish.first(number)
        print(f"\n{self._notice}", file=self._stderr, flush=True)
