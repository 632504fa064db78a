"""`make run` and `make sweep`: our words, then those of ARGS, quoted as in a shell but nothing expanded."""

import os
import shlex
import sys


def words(text: str) -> list[str]:
    """Split as a shell would, leaving `$`, `*` and backquotes alone. ValueError for an open quote."""
    return shlex.split(text)


def main() -> int:
    text = os.environ.get("SYNCLESS_ARGS", "")
    try:
        arguments = words(text)
    except ValueError as error:
        print(f"error: ARGS cannot be split into words ({error}): {text}", file=sys.stderr)
        return 1
    os.execv(sys.executable, [sys.executable, "-m", "engine", *sys.argv[1:], *arguments])


if __name__ == "__main__":
    sys.exit(main())
