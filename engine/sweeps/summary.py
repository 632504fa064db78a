"""The report of a sweep's folder, rewritten while it runs and at its end. Knows no figure and no page."""

from __future__ import annotations

import logging
from pathlib import Path

from engine.lazy import lazy_import

report = lazy_import("engine.report")  # with its plotting library: only a sweep needs it

log = logging.getLogger("syncless")


def summary_after_job(directory: Path) -> None:
    """summary.md and results.csv. What goes wrong here costs no job: it is said, and the jobs go on."""
    try:
        report.write([directory], page=False)
    except Exception as error:
        log.warning("the summary could not be written: %s: %s", type(error).__name__, error)


def final_report(directory: Path) -> Path | None:
    """Everything, report.html too; the page's path."""
    try:
        return Path(report.write([directory]))
    except (ImportError, AttributeError) as error:
        log.warning("no report yet: %s", error)
        return None
