"""What the scheduler tells of a run's course, for whoever writes it down: arrivals, launched steps, ends.

The contract and its null object. Knows no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.batch import ScheduledStep
    from engine.request import Request


class Tape:
    """Hears what happens, in the order in which it happens, and keeps nothing.

    applied: id of the last step whose results were applied; with the last launched one it is the place where
    something happened.
    """

    def arrived(self, request: Request, applied: int) -> None:
        """A sample of a request was queued."""
        return None

    def launched(self, step: ScheduledStep, requests: Sequence[Request]) -> None:
        """A step is about to be launched; `requests` in the order of its rows, their lengths as before it."""
        return None

    def ended(self, request: Request, applied: int) -> None:
        """A sample is finished, for whatever reason."""
        return None

    def close(self) -> None:
        """Nothing more will happen."""
        return None


UNRECORDED = Tape()
