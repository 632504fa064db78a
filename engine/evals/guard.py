"""The child process of a check: sets its own limits, runs the program it was sent, reports how that ended.

A script, not a module: it runs under `python -I -S`, with the standard library alone. Knows no data set.
"""

import io
import json
import os
import resource
import sys


def limit(megabytes: int, seconds: int) -> None:
    """Bounds of this process that it cannot raise again."""
    bounds = {
        resource.RLIMIT_AS: megabytes << 20,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: 1 << 20,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_NPROC: 0,  # no processes of its own (the kernel exempts root)
        resource.RLIMIT_CORE: 0,
    }
    for kind, value in bounds.items():
        resource.setrlimit(kind, (value, value))


def main() -> None:
    """Read {nonce, program, megabytes, seconds} from standard input, write {nonce, error} to standard output.

    The nonce comes last: a program that ends the process, or prints, cannot be taken for one that passed.
    """
    job = json.load(sys.stdin)
    report = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    sys.stdin = io.StringIO()
    limit(job["megabytes"], job["seconds"])
    error = None
    try:
        exec(compile(job["program"], "program.py", "exec"), {"__name__": "program"})
    except BaseException as caught:  # SystemExit and KeyboardInterrupt of the program too
        error = f"{type(caught).__name__}: {str(caught)[:200]}".rstrip(": ")
    os.write(report, json.dumps({"nonce": job["nonce"], "error": error}).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
