"""A table of kernel choices for an H200, and a file of it: what the tests of tables share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.kernel_choices.plans import Place, Plan
from engine.kernel_choices.table import ChoiceTable, Circumstances, Entry, as_document

HERE = Circumstances("NVIDIA H200", "2.11.0", "3.6.0")
PLACE = Place("linear", "bfloat16", 1, 4096, 4096)
GATED = Place("norm_gated", "bfloat16", 8, 28672, 4096)
PLAN = Plan("rows", 4, 2048, warps=8)
TABLE = ChoiceTable(
    HERE, {PLACE: Entry(PLAN, 8e-6, 9.5e-6), GATED: Entry(Plan("tile", 64, 128, gate=True), 6e-5, 7e-5)}
)


def written(path: Path, table: ChoiceTable = TABLE, **changes: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**as_document(table), **changes}))
    return path
