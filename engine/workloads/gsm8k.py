"""GSM8K: word problems of primary school (Cobbe et al. 2021, arXiv 2110.14168). Knows the file's rows.

Importable without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UserError
from engine.workloads.base import WorkItem
from engine.workloads.data import DataSet, DataWorkload
from engine.workloads.rows import as_object, text_of


@dataclass(frozen=True)
class Problem:
    """A row. answer: worked out, its last line is `#### NUMBER`; None in a file of questions alone."""

    question: str
    answer: str | None
    where: str


def parse_problem(row: Any, where: str) -> Problem:
    """The row's question, and its answer where it has one."""
    answer = as_object(row, where).get("answer")
    if answer is not None and not isinstance(answer, str):
        raise UserError(f"{where}: answer has to be text that ends in '#### NUMBER'")
    return Problem(text_of(row, "question", where), answer, where)


GSM8K = DataSet(
    name="gsm8k",
    form='{"question": "...", "answer": "... #### 18"}',
    origin="test.jsonl of openai/grade-school-math on GitHub, or the hub id openai/gsm8k",
    sample=Path(__file__).with_name("gsm8k_sample.jsonl"),
    hub=("main/test-*.parquet", "test.jsonl", "data/test.jsonl"),
    parse=parse_problem,
    what="questions",
)


class Gsm8kWorkload(DataWorkload[Problem]):
    """The questions as users ask them; `task=eval eval=gsm8k` judges answers."""

    data = GSM8K

    def asked(self, row: Problem) -> list[WorkItem]:
        return [WorkItem(prompt=row.question)]
