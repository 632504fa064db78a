"""Write a report's files: summary.md and results.csv at once, the page where it is asked for.

Importable without torch and without the plotting library. Knows which files there are, not what they say.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from engine.errors import UserError
from engine.report.library import missing
from engine.report.markdown import summary
from engine.report.reading import read_all
from engine.report.study import Study, make_study
from engine.report.tables import csv_text, records, write_parquet

SUMMARY, CSV, PARQUET, PAGE = "summary.md", "results.csv", "results.parquet", "report.html"


def write(
    directories: Sequence[Path],
    *,
    page: bool = True,
    out: Path | None = None,
    baseline: Sequence[str] | None = None,
) -> Path:
    """summary.md and results.csv (results.parquet with pyarrow), and report.html where `page`; its path.

    directories: sweeps, also half-finished ones, or single run folders. out: the folder for the files; None:
    the first of `directories`. baseline: overrides that name the rows to compare with. UserError: a folder is
    neither, a file cannot be written, or, once the other files are, the page's plotting library is missing.
    """
    study = make_study(read_all([Path(path) for path in directories]), baseline)
    where = Path(directories[0] if out is None else out)
    try:
        where.mkdir(parents=True, exist_ok=True)
        return _write(study, where, page)
    except OSError as error:
        raise UserError(
            f"cannot write the report to {where}: {error.strerror}; choose another with --out"
        ) from error


def _write(study: Study, where: Path, page: bool) -> Path:
    rows, lacking = records(study), missing()
    _replace(where / SUMMARY, summary(study, lacking))
    _replace(where / CSV, csv_text(rows))
    write_parquet(rows, where / PARQUET)
    if page:
        from engine.report.page import html  # the template engine is not worth loading after every job

        _replace(where / PAGE, html(study))
    return where / PAGE


def _replace(path: Path, text: str) -> None:
    """Whole or not at all: somebody may be reading the file while a sweep goes on."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8", errors="backslashreplace")
    os.replace(partial, path)
