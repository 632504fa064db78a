"""The command line of `python -m engine.replay`. Knows exit codes and streams, nothing of replays."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from engine.cli.main import CLOSED_PIPE, INTERRUPTED, readable
from engine.errors import UserError
from engine.replay.replaying import replay
from engine.tasks.base import EXIT_DIFFERENT, EXIT_OK
from engine.termination import sigterm_as_ctrl_c

USAGE = """python -m engine.replay RUN_DIR [key=value ...]

Runs the snapshot in RUN_DIR again, with any overrides on top, meets its requests where they came then, and
says whether the outputs are identical and, if they are not, what else differs. See docs/repeats.md.
Exit code 0: identical; 1: different, or the folder cannot be replayed; 130: interrupted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        return EXIT_OK if arguments else EXIT_DIFFERENT
    return guarded(lambda: replay(arguments[0], arguments[1:]), EXIT_DIFFERENT)


def guarded(act: Callable[[], int], on_error: int) -> int:
    """The exit code of `act`; what the user can mend, stops or no longer reads ends without a traceback."""
    try:
        with sigterm_as_ctrl_c():
            code = act()
            sys.stdout.flush()
        return code
    except UserError as error:
        print(readable(error), file=sys.stderr)
        return on_error
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
