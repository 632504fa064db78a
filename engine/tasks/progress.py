"""What a person watches while waiting, on stderr only. Knows nothing of the work."""

from __future__ import annotations

from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from engine.tasks.drive import Answer


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

    def finished(self, answer: Answer) -> None:
        """One more request is done."""
        self._tokens += answer.tokens
        self._bars.update(self._task, advance=1, tokens=self._tokens)

    def __enter__(self) -> RequestProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
