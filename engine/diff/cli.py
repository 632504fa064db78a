"""The command line of `python -m engine.diff`. Knows flags and exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from engine.diff.comparing import compare
from engine.diff.text import lines_of
from engine.replay.cli import guarded

USAGE = """python -m engine.diff A B [--json]

What differs between the runs in the folders A and B: settings, stack (code, packages, machine, files),
batches, answers (the first differing token of each) and figures (change, and whether it is more than the
noise of the repeats). Exit code 0: the same settings, stack, prompts and answers, and no figure beyond the
noise; 1: some difference; 2: the folders cannot be compared. See docs/repeats.md."""
SAME, DIFFERENT, TROUBLE = 0, 1, 2
JSON = "--json"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if any(word in ("-h", "--help") for word in arguments):
        print(USAGE)
        return SAME
    folders = [word for word in arguments if word != JSON]
    if len(folders) != 2 or any(word.startswith("--") for word in folders):
        print(USAGE, file=sys.stderr)
        return TROUBLE
    return guarded(lambda: _show(*folders, as_json=JSON in arguments), TROUBLE)


def _show(first: str, second: str, *, as_json: bool) -> int:
    difference = compare(first, second)
    print(json.dumps(difference.document()) if as_json else "\n".join(lines_of(difference)))
    return DIFFERENT if difference.found else SAME
