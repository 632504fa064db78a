"""The prompts that ship with the package, so that the first run needs no file. Knows no other source."""

from __future__ import annotations

from pathlib import Path

from engine.workloads.base import WorkItem, Workload
from engine.workloads.rows import read_rows

PROMPTS = Path(__file__).with_name("prompts.jsonl")


class BuiltinPrompts(Workload):
    """A small varied set: facts, explanations, code, a list, a poem, a sum, a conversation."""

    def __init__(self, config: Workload.Config) -> None:
        self._items = read_rows(PROMPTS)[: config.limit]

    def items(self, vocab_size: int) -> list[WorkItem]:
        return self._items
