"""Instructions in the form of Alpaca: an instruction, and the text it is about. Knows the file's rows.

Importable without torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.errors import UserError
from engine.workloads.base import WorkItem
from engine.workloads.data import DataSet, DataWorkload
from engine.workloads.rows import KEYS, as_object, parse_row, text_of


def parse_instruction(row: Any, where: str) -> WorkItem:
    """instruction and input as one user text. Rows of workload=file (prompt, turns) are taken as well: the
    evaluation questions drawn from Alpaca are published in that form."""
    as_object(row, where)
    if "instruction" not in row and any(key in row for key in KEYS):
        return parse_row(row, where)
    text, about = text_of(row, "instruction", where), row.get("input") or ""
    if not isinstance(about, str):
        raise UserError(f"{where}: input has to be text, or left out")
    return WorkItem(prompt=f"{text}\n\n{about}" if about.strip() else text)


ALPACA = DataSet(
    name="alpaca",
    form='{"instruction": "Shorten this text.", "input": "..."}, where input may be empty or absent',
    origin="alpaca_data.json of tatsu-lab/stanford_alpaca on GitHub, or JSONL of that form",
    sample=Path(__file__).with_name("alpaca_sample.jsonl"),
    hub=("data/train-*.parquet",),
    parse=parse_instruction,
)


class AlpacaWorkload(DataWorkload[WorkItem]):
    """One user turn a row."""

    data = ALPACA

    def asked(self, row: WorkItem) -> list[WorkItem]:
        return [row]
