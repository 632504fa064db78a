"""The workload of `prompt=`: one text from the command line or from standard input. Knows no file."""

from __future__ import annotations

from typing import TextIO

from engine.errors import UserError
from engine.runs import is_unicode
from engine.workloads.base import WorkItem, Workload

STDIN = "-"


class SinglePrompt(Workload):
    """One prompt, given as it is; `-` reads all of standard input (its last line break is not part of it)."""

    def __init__(self, config: str, stdin: TextIO | None = None) -> None:
        text = config
        if config == STDIN and stdin is not None:
            text = stdin.read().removesuffix("\n").removesuffix("\r")
        if not text.strip():
            where = "standard input (prompt=-)" if config == STDIN else "prompt"
            raise UserError(f"{where} is empty: give a text, or leave prompt out to run the workload")
        if not is_unicode(text):
            raise UserError("standard input (prompt=-) is not UTF-8 text: convert it first")
        self._text = text

    def items(self, vocab_size: int) -> list[WorkItem]:
        return [WorkItem(prompt=self._text)]
