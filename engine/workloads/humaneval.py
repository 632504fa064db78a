"""HumanEval: Python functions to complete (Chen et al. 2021, arXiv 2107.03374). Knows the file's rows.

Importable without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.workloads.base import WorkItem
from engine.workloads.data import DataSet, DataWorkload
from engine.workloads.rows import as_object, text_of


@dataclass(frozen=True)
class Function:
    """A row. prompt: imports, signature and docstring. row: all of it, with the test and the entry point."""

    prompt: str
    row: Mapping[str, Any]
    where: str


def parse_function(row: Any, where: str) -> Function:
    """The row; only its prompt is demanded here."""
    return Function(text_of(as_object(row, where), "prompt", where), row, where)


HUMANEVAL = DataSet(
    name="humaneval",
    form='{"task_id": "1", "prompt": "def f(x):...", "entry_point": "f", "test": "def check(candidate):..."}',
    origin="HumanEval.jsonl of openai/human-eval on GitHub, unpacked, or the hub id openai/openai_humaneval",
    sample=Path(__file__).with_name("humaneval_sample.jsonl"),
    hub=("openai_humaneval/test-*.parquet", "test.jsonl", "data/test.jsonl"),
    parse=parse_function,
    what="functions",
)


class HumanEvalWorkload(DataWorkload[Function]):
    """The prompts as they are: a user's turn, or with task.raw=true a text to continue."""

    data = HUMANEVAL

    def asked(self, row: Function) -> list[WorkItem]:
        return [WorkItem(prompt=row.prompt)]
