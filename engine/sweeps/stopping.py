"""Ctrl-C and a termination signal as a wish that all jobs of a sweep see, wherever they run."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, TextIO

from engine.sweeps.folder import FORCE, STOP, SweepFolder
from engine.termination import SIGNALS, Wish


class Stopping:
    """`with Stopping(folder, stderr) as stop:` the first signal asks the jobs to save and end, the second
    kills them and raises KeyboardInterrupt. `stop.requested` tells afterwards. Stops nothing itself."""

    def __init__(self, folder: SweepFolder, stderr: TextIO) -> None:
        self._folder, self._stderr = folder, stderr
        self._former: dict[signal.Signals, Any] = {}
        self._wish = Wish()
        self.requested = False

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handler
            self._former = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            if not self._wish.again(number):
                return
            self._folder.ask(FORCE)
            raise KeyboardInterrupt
        self.requested = True
        self._wish.first(number)
        self._folder.ask(STOP)
        print("\nstopping the running jobs; once more kills them", file=self._stderr, flush=True)
