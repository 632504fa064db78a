"""Lengths that are fixed, or drawn evenly from a range. Knows nothing of what has the length."""

from __future__ import annotations

import random

from engine.errors import UserError

Length = int | tuple[int, int]


def check_length(value: Length, setting: str) -> None:
    """UserError for a range that is none."""
    if isinstance(value, int):
        return
    low, high = value
    if not 1 <= low <= high:
        raise UserError(
            f"{setting}=[{low}, {high}] is no range of lengths: give [SHORTEST, LONGEST], from 1 upwards"
        )


def draw_length(value: Length, draw: random.Random) -> int:
    """The length itself, or one of the range, every one as likely."""
    return value if isinstance(value, int) else draw.randint(*value)
