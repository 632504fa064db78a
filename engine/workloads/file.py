"""Prompts from a file: text with one prompt a line, or JSONL. Knows nothing of how they are asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.build import number
from engine.errors import UserError
from engine.workloads.base import WorkItem, Workload
from engine.workloads.data import picked
from engine.workloads.rows import read_rows, read_text


class FileWorkload(Workload):
    """`workload=file workload.path=FILE`: JSONL where the name ends in .jsonl or .json, else plain text."""

    @dataclass(frozen=True)
    class Config(Workload.Config):
        """path: the file. limit: use the first so many items only. seed: shuffle before that."""

        path: str | None = None
        limit: int | None = number(None, ge=1)
        seed: int | None = number(None, ge=0)

    def __init__(self, config: Config) -> None:
        if not config.path:
            raise UserError("workload=file needs a file of prompts: set workload.path=FILE")
        path = Path(config.path).expanduser()
        read = read_rows if path.suffix in (".jsonl", ".json", ".parquet") else read_text
        self._items = picked(read(path), config.limit, config.seed)

    def items(self, vocab_size: int) -> list[WorkItem]:
        return self._items
