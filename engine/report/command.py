"""The command line of `python -m engine.report`. Knows arguments and exit codes, not what a report says."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.cli.main import readable
from engine.errors import UserError
from engine.report.writing import write

DESCRIPTION = """Write report.html, summary.md and results.csv for the folder of a sweep or of a run.
Several folders are compared: the same cell at two commits, or on two machines; differences beyond the noise
of the repeats are flagged."""


def parser() -> argparse.ArgumentParser:
    """Its options."""
    made = argparse.ArgumentParser("python -m engine.report", description=DESCRIPTION)
    made.add_argument(
        "directories", metavar="DIR", nargs="+", type=Path, help="the folder of a sweep or of a run"
    )
    made.add_argument("--out", type=Path, help="the folder for the report (default: the first DIR)")
    made.add_argument("--no-page", action="store_true", help="summary.md and results.csv only")
    made.add_argument(
        "--baseline",
        metavar="KEY=VALUE",
        nargs="+",
        action="extend",
        help="what speed-ups are over, for example spec=none (default: the sweep's own choice)",
    )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0: written; 1: a mistake, said in one sentence on stderr."""
    chosen = parser().parse_args(argv)
    try:
        page = write(chosen.directories, page=not chosen.no_page, out=chosen.out, baseline=chosen.baseline)
    except UserError as error:
        print(readable(error), file=sys.stderr)
        return 1
    print(page if not chosen.no_page else page.with_name("summary.md"))
    return 0
