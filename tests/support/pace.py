"""How fast this machine is just now, for bounds of time.

A machine may take twice as long for the same instructions as another, or as itself an hour ago, when others
use its processors too; no clock of the process shows that.
"""

from __future__ import annotations

import time

_ROUNDS = 200_000
# That they take where `task=explain` takes 0.44 s (docs/results.md), by one on which both were measured.
_SECONDS = 0.0055


def within(seconds: float, bound: float) -> bool:
    """Whether work took less than a bound of seconds, or would have at the agreed pace."""
    return seconds < bound or seconds < bound * slowness()


def slowness() -> float:
    """How many times as long Python takes here as there, at least 1."""
    return max(1.0, min(_spent() for _ in range(5)) / _SECONDS)


def _spent() -> float:
    start = time.process_time()
    total, table = 0, dict.fromkeys(range(64), 1)
    for number in range(_ROUNDS):
        total += table[number & 63]
    assert total == _ROUNDS
    return time.process_time() - start
