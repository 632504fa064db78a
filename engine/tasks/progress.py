"""What a person watches while waiting, on stderr only. Knows nothing of the work."""

from __future__ import annotations

from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class LoadingProgress:
    """Called with (what, done, total) while a model loads: a bar for each `what`, if it is a terminal."""

    def __init__(self, stderr: TextIO) -> None:
        console = Console(file=stderr)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._known: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self._known:
            self._known[what] = self._bars.add_task(what, total=total)
        self._bars.update(self._known[what], completed=done, total=total)

    def __enter__(self) -> LoadingProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()


class RequestProgress:
    """A bar of finished requests with the tokens so far; silent without a terminal or for one request."""

    def __init__(self, stderr: TextIO, total: int, what: str = "requests") -> None:
        console = Console(file=stderr)
        self._bars = Progress(
            TextColumn(what),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[tokens]} tokens"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=total < 2 or not console.is_terminal,
        )
        self._task = self._bars.add_task(what, total=total, tokens=0)
        self._tokens = 0

    def tokens(self, count: int) -> None:
        """`count` more tokens arrived."""
        self._tokens += count
        self._bars.update(self._task, tokens=self._tokens)

    def finished(self) -> None:
        """One more request is done."""
        self._bars.advance(self._task)

    def __enter__(self) -> RequestProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
