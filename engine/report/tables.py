"""results.csv, and results.parquet where pyarrow is installed: a line for each cell, for other programs.

Full precision, units in the columns' names. Knows no page.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.report.figures import FIGURES
from engine.report.numbers import choice
from engine.report.rows import Row
from engine.report.settings import command
from engine.report.study import Study

Record = dict[str, Any]
FORMULA = ("=", "+", "-", "@", "\t", "\n")  # beginnings of cells that spreadsheets take for formulas
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def records(study: Study) -> list[Record]:
    """Flat rows, all with the same keys, in the order of their numbers."""
    return [_record(study, row) for row in sorted(study.rows, key=lambda row: row.number)]


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """RFC 4180 with a line feed as line end; nothing for null. Text that a spreadsheet would compute as a
    formula gets an apostrophe in front."""
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _inert(value) for key, value in row.items()} for row in rows)
    return out.getvalue()


def _inert(value: Any) -> Any:
    """What no spreadsheet runs (OWASP, CSV injection). Numbers stay what they are, negative ones too."""
    if not isinstance(value, str):
        return value
    text = value.replace("\r\n", "\n").replace("\r", "\n")  # csv leaves a lone CR unquoted: a broken row
    return f"'{text}" if text.startswith(FORMULA) and not NUMBER.fullmatch(text) else text


def write_parquet(rows: Sequence[Mapping[str, Any]], path: Path) -> bool:
    """False, and no file, where pyarrow is not installed."""
    if not rows or importlib.util.find_spec("pyarrow") is None:
        return False
    arrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    parquet.write_table(arrow.table({name: [row[name] for row in rows] for name in rows[0]}), path)
    return True


def _record(study: Study, row: Row) -> Record:
    own, speedup = row.settings, study.speedups.get(row.number)
    figures = {figure.key: figure.value(row.result) if row.measured else None for figure in FIGURES}
    ratio = speedup.ratio if speedup else None
    return {
        "number": row.number,
        "sweep": study.sweeps[row.source].name,
        "id": row.id,
        "state": str(row.state),
        "reason": row.reason,
        "job_seconds": row.seconds,
        **{f"choice.{key}": choice(own[key]) if key in own else None for key in study.every_key},
        **figures,
        "speedup": ratio.value if ratio else None,
        "speedup_low": ratio.low if ratio else None,
        "speedup_high": ratio.high if ratio else None,
        "speedup_over": speedup.base if speedup else None,
        "mark": speedup.mark if speedup else None,
        "warnings": "; ".join(study.warnings.get(row.number, ())) or None,
        "commit": (row.facts.get("git") or {}).get("commit"),
        "device_name": row.facts.get("device_name"),
        "command": command(row),
    }
