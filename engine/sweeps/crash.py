"""`task=crash`: a job that ends badly on purpose, to see that a sweep outlives it. Measures nothing."""

from __future__ import annotations

import os
import resource
import signal
import time
from dataclasses import dataclass
from typing import NoReturn

from engine.build import choice, number
from engine.tasks.base import Outcome, Task, TaskContext

HEADROOM = 64 * 2**20  # bytes beyond what the process has already


class Crash(Task):
    """Never returns an outcome."""

    @dataclass(frozen=True)
    class Config(Task.Config):
        """how: kill (SIGKILL to itself), raise (an error), memory (allocates past a limit of its own) or hang
        (sleeps, for the time limit). after: seconds before."""

        format: str = choice("text", ("text", "json"))
        how: str = choice("kill", ("kill", "raise", "memory", "hang"))
        after: float = number(0.0, ge=0)

    def __init__(self, config: Config) -> None:
        self._config = config

    def run(self, context: TaskContext) -> Outcome:
        print(f"task=crash: this job ends by task.how={self._config.how}", file=context.stderr, flush=True)
        time.sleep(self._config.after)
        ways = {"kill": _kill, "raise": _raise, "memory": _exhaust, "hang": _hang}
        ways[self._config.how]()


def _kill() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    _hang()


def _raise() -> NoReturn:
    raise RuntimeError("task=crash raised this on purpose")


def _exhaust() -> NoReturn:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + HEADROOM, hard))
    held = [bytes(2**20)]
    while True:
        held.append(bytes(2**20))


def _hang() -> NoReturn:
    while True:
        time.sleep(1)


def _data_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as lines:
        size = next(line for line in lines if line.startswith("VmData:"))
    return int(size.split()[1]) * 1024
