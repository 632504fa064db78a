"""The report of a sweep's folder, rewritten while it runs and at its end. Knows no figure and no page."""

from __future__ import annotations

import logging
from pathlib import Path

from engine import report
from engine.errors import UserError

log = logging.getLogger("syncless")


def write_summary(directory: Path, *, page: bool) -> Path | None:
    """summary.md and results.csv, at the end report.html too; the page's path, None where there is none.

    What goes wrong here costs no job: it is said, and `python -m engine.report` can do it again.
    """
    try:
        return report.write([directory], page=page)
    except UserError as error:
        log.warning("%s", error)
    except Exception as error:  # whatever a figure of some task may cause: the results are on disk
        log.warning("the report of %s was not written: %s: %s", directory, type(error).__name__, error)
    return None
