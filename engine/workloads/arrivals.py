"""When requests arrive: all at once, at random, or in bursts. Knows numbers of requests, not what they ask.

Importable without torch. Every draw is seeded, and the times are kept with the requests.
"""

from __future__ import annotations

import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from engine.build import number
from engine.workloads.base import WorkItem, Workload


class Arrivals(ABC):
    """Gives every item of a workload its time."""

    timed: ClassVar[bool] = True  # False: it adds no times of its own

    @dataclass(frozen=True)
    class Config:
        """No options."""

    @abstractmethod
    def __init__(self, config: Any) -> None: ...

    @abstractmethod
    def times(self, items: Sequence[WorkItem]) -> list[float]:
        """Seconds after the start for each item, the first one at 0."""


class AsGiven(Arrivals):
    """Everything at once, except items that name their own time (a recorded trace)."""

    timed = False

    def __init__(self, config: Arrivals.Config) -> None:
        self._config = config

    def times(self, items: Sequence[WorkItem]) -> list[float]:
        return [item.at for item in items]


class RandomArrivals(Arrivals):
    """Independent gaps: exponential ones make a Poisson process; gamma ones are more even or more bursty."""

    @dataclass(frozen=True)
    class Config(Arrivals.Config):
        """rate: requests a second, on average. shape: of the gaps' gamma distribution; 1: a Poisson process,
        below 1: burstier, above: more even (the gaps' variation is 1 / sqrt(shape))."""

        rate: float = number(1.0, gt=0)
        shape: float = number(1.0, gt=0)
        seed: int = number(0, ge=0)

    def __init__(self, config: Config) -> None:
        self._config = config

    def times(self, items: Sequence[WorkItem]) -> list[float]:
        c = self._config
        draw = random.Random(c.seed)
        gaps = (draw.gammavariate(c.shape, 1 / (c.rate * c.shape)) for _ in items[1:])
        return list(itertools.accumulate(gaps, initial=0.0))[: len(items)]


class Bursts(Arrivals):
    """`size` requests together, every `seconds`; size 1 is a constant rate."""

    @dataclass(frozen=True)
    class Config(Arrivals.Config):
        """size: requests that come together. seconds: from one burst to the next."""

        size: int = number(8, ge=1)
        seconds: float = number(1.0, gt=0)

    def __init__(self, config: Config) -> None:
        self._config = config

    def times(self, items: Sequence[WorkItem]) -> list[float]:
        c = self._config
        return [place // c.size * c.seconds for place in range(len(items))]


class TimedWorkload(Workload):
    """A workload whose items carry their times of arrival."""

    def __init__(self, inner: Workload, arrivals: Arrivals) -> None:
        self._inner = inner
        self._arrivals = arrivals
        self.representative = inner.representative

    def fetch(self) -> None:
        self._inner.fetch()

    def items(self, vocab_size: int) -> list[WorkItem]:
        found = self._inner.items(vocab_size)
        times = self._arrivals.times(found)
        return [replace(item, at=at) for item, at in zip(found, times, strict=True)]
