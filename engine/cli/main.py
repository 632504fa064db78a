"""Entry point: flags to actions, every outcome to an exit code and at most one readable message.

0 done; 1 a mistake of the user's, or a check that failed; 130 interrupted; 141 nobody reads stdout.
A bug in the engine keeps its traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from hydra.errors import CompactHydraException

from engine.cli.flags import Flags, parse_flags

INTERRUPTED = 130  # 128 + SIGINT
CLOSED_PIPE = 141  # 128 + SIGPIPE, what a shell reports of `yes | head`


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _act(parse_flags(arguments))
        sys.stdout.flush()
        return code
    except CompactHydraException as error:
        print(readable(error), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes stdout at exit; what is left must go nowhere, or it complains then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE


def readable(error: BaseException) -> str:
    """One message for a person: a single problem on its line, several as a list."""
    problems = [line for line in str(error).splitlines() if line.strip()]
    if len(problems) <= 1:
        return f"error: {''.join(problems) or type(error).__name__}"
    return "\n".join([f"error: {len(problems)} problems", *(f"  - {problem}" for problem in problems)])


def _act(flags: Flags) -> int:
    """The imports are here because help has to be quick."""
    if flags.version:
        from engine import __version__

        print(f"syncless {__version__}")
        return 0
    if flags.help:
        from engine.cli.help_text import help_text

        print(help_text())
        return 0
    from engine.cli import execute

    return execute.execute(flags)
