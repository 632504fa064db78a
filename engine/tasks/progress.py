"""What a person watches while waiting, on stderr only. Knows nothing of the work."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from engine.tasks.drive import Answer

LINE_SECONDS = 10.0  # where no terminal shows a bar: a line now and then


class RequestProgress:
    """A bar of finished requests with the tokens so far; without a terminal a line every ten seconds at most.

    Silent for one request.
    """

    def __init__(
        self,
        stderr: TextIO,
        total: int,
        what: str = "requests",
        note: Callable[[], str] = lambda: "",
    ) -> None:
        """note: what is said behind the count, asked whenever it is shown."""
        console = Console(file=stderr)
        self._bars = Progress(
            TextColumn(what),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[tokens]} tokens"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=total < 2 or not console.is_terminal,
        )
        self._task = self._bars.add_task(what, total=total, tokens=0, note="")
        self._tokens = self._done = 0
        self._what, self._total, self._stderr, self._note = what, total, stderr, note
        self._lines = total >= 2 and not console.is_terminal
        self._said = time.monotonic()

    def finished(self, answer: Answer) -> None:
        """One more request is done."""
        self._tokens += answer.tokens
        self._done += 1
        self._bars.update(self._task, advance=1, tokens=self._tokens, note=self._note())
        if self._lines and time.monotonic() - self._said >= LINE_SECONDS:
            self._said = time.monotonic()
            parts = [f"{self._done}/{self._total}", f"{self._tokens} tokens", self._note()]
            print(f"{self._what}: {', '.join(filter(None, parts))}", file=self._stderr)

    def __enter__(self) -> RequestProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
