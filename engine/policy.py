"""In which order waiting requests are looked at, and the scheduler's limits (each policy's yaml holds both).

Knows neither pages nor rows: whether a request fits is for admission to say.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from engine.build import number
from engine.cache.base import PrefixCache
from engine.request import Request


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of the scheduler.

    max_running: requests with a row. chunk_tokens: prompt tokens a prefill step computes, over all requests.
    prefill_streak: prefill steps in a row while others decode. headroom: tokens of growth that every running
    request must have room for before another is admitted (more: fewer retractions, smaller batches).
    max_waiting: requests that may wait, 0 for no limit.
    """

    max_running: int = number(64, ge=1)
    chunk_tokens: int = number(2048, ge=1)
    prefill_streak: int = number(1, ge=1)
    headroom: int = number(64, ge=0)
    max_waiting: int = number(0, ge=0)


class Policy(ABC):
    """An order of the waiting queue. Must let every request reach the front in the end."""

    Config: type[SchedulerConfig] = SchedulerConfig

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def order(self, waiting: Iterable[Request], cache: PrefixCache, step_id: int) -> Iterable[Request]:
        """`waiting` comes in order of arrival. step_id: of the step being planned, a clock for ageing."""


class FirstComeFirstServed(Policy):
    """Order of arrival."""

    def order(self, waiting: Iterable[Request], cache: PrefixCache, step_id: int) -> Iterable[Request]:
        return waiting


class LongestPrefixFirst(Policy):
    """Those with the longest cached prefix first (Zheng et al. 2024, SGLang, sec. 3): less is computed again.

    A request that has waited `aging` steps goes before them, in order of arrival, so nobody starves. Only the
    first `window` requests are compared.
    """

    @dataclass(frozen=True)
    class Config(SchedulerConfig):
        """aging: steps after which a waiting request goes first. window: requests that are compared."""

        aging: int = number(256, ge=1)
        window: int = number(128, ge=1)

    def order(self, waiting: Iterable[Request], cache: PrefixCache, step_id: int) -> Iterable[Request]:
        rest = iter(waiting)
        window = list(islice(rest, self.config.window))
        old = [r for r in window if step_id - r.waiting_since >= self.config.aging]
        young = [r for r in window if step_id - r.waiting_since < self.config.aging]
        young.sort(key=lambda request: -cache.peek(request.cache_key))
        return chain(old, young, rest)
