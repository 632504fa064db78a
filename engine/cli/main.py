"""Entry point: flags to actions, every outcome to an exit code and at most one readable message.

0 done; 1 a mistake of the user's, or a check that failed; 130 interrupted (Ctrl-C or SIGTERM); 141 nobody
reads stdout. A bug in the engine keeps its traceback.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence

from hydra.errors import CompactHydraException

from engine.cli.flags import Flags, parse_flags
from engine.termination import sigterm_as_ctrl_c

INTERRUPTED = 130  # 128 + SIGINT; of SIGTERM, too, as one wish has one code
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
CLOSED_PIPE = 141  # 128 + SIGPIPE, what a shell reports of `yes | head`


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _mend_streams()
    try:
        with sigterm_as_ctrl_c():
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
        _drop_stdout()
        return CLOSED_PIPE
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        _drop_stdout()
        print(f"error: {error.strerror}: free some space, or choose another hydra.run.dir", file=sys.stderr)
        return 1


def _drop_stdout() -> None:
    """The interpreter flushes stdout at exit; what is left must go nowhere, or it complains then."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _mend_streams() -> None:
    """No letter that a stream cannot show, byte that it cannot read, or stream that is closed ends a run."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, io.StringIO())
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.stdin is None:
        sys.stdin = io.StringIO()
    elif isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")


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
