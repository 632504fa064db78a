"""How long a CUDA stream has been at work, from pairs of events; nothing waits for one.

Knows no work. A span starts when the device reaches it, so the time that it waits behind others is theirs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class _Pair:
    begin: torch.cuda.Event
    end: torch.cuda.Event


class StreamClock:
    """Adds up spans of the current stream as the device passes them."""

    def __init__(self) -> None:
        self._total = 0.0
        self._pending: deque[_Pair] = deque()
        self._spare: list[_Pair] = []

    @contextmanager
    def span(self) -> Iterator[None]:
        """What is launched inside counts."""
        pair = self._spare.pop() if self._spare else _new_pair()
        pair.begin.record()
        yield
        pair.end.record()
        self._pending.append(pair)

    def seconds(self) -> float:
        """Of all spans that are over by now."""
        while self._pending and self._pending[0].end.query():  # type: ignore[no-untyped-call]
            pair = self._pending.popleft()
            self._total += pair.begin.elapsed_time(pair.end) / 1e3
            self._spare.append(pair)
        return self._total


def _new_pair() -> _Pair:
    return _Pair(*(torch.cuda.Event(enable_timing=True) for _ in range(2)))  # type: ignore[no-untyped-call]
