"""The two loops around a step: launch, wait, process; or launch n+1, then process n.

Importable without torch. Knows the order of things and nothing of what a step computes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.answers import Event
    from engine.executor import Executor
    from engine.futures import StepHandle
    from engine.scheduler import Scheduler


class Loop(ABC):
    """Drives scheduler and executor."""

    @dataclass(frozen=True)
    class Config:
        """debug: poison consumed buffers and unwritten tokens, assert that every result is consumed once."""

        debug: bool = False

    def __init__(self, config: Config, scheduler: Scheduler, executor: Executor) -> None:
        self.config = config
        self._scheduler = scheduler
        self._executor = executor

    @abstractmethod
    def turn(self) -> list[Event]:
        """One iteration: at most one launch, at most one step processed. Empty work makes an empty turn."""

    @abstractmethod
    def has_work(self) -> bool:
        """Whether another turn would launch or process anything."""


class SerialLoop(Loop):
    """Launch, wait, process."""

    def turn(self) -> list[Event]:
        step = self._scheduler.schedule()
        if step is None:
            return self._scheduler.take_events()
        handle = self._executor.launch(step)
        return self._scheduler.apply(step, self._executor.resolve(handle))

    def has_work(self) -> bool:
        return self._scheduler.has_work()


class OverlapLoop(Loop):
    """Launch n+1, then process n: the host prepares and post-processes while the device computes."""

    def __init__(self, config: Loop.Config, scheduler: Scheduler, executor: Executor) -> None:
        super().__init__(config, scheduler, executor)
        self._in_flight: StepHandle | None = None

    def turn(self) -> list[Event]:
        step = self._scheduler.schedule()
        handle = self._executor.launch(step) if step is not None else None
        previous, self._in_flight = self._in_flight, handle
        if previous is None:
            return self._scheduler.take_events()
        return self._scheduler.apply(previous.step, self._executor.resolve(previous))

    def has_work(self) -> bool:
        return self._in_flight is not None or self._scheduler.has_work()
