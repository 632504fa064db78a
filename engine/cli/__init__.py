"""The command line: `syncless` and `python -m engine`. Knows flags and exit codes, nothing of a task."""

from engine.cli.main import main

__all__ = ["main"]
