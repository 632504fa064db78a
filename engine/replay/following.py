"""An engine that meets its requests where a recording met them: what comes too early is held, what comes too
late is waited for, and who was cancelled then is cancelled now.

Knows requests and the course; the tasks that drive it notice nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.answers import Delta
from engine.core import Params, Prompt
from engine.llm import LLM
from engine.replay.course import Arrival, Closed, End, check_of
from engine.replay.follow import Recorded
from engine.replay.recorder import Recorder
from engine.tasks.base import say

PAUSE = 0.0005  # seconds between two looks for a request that is to come
PATIENCE = 60.0  # and how long it is waited for: in a replay nothing comes by the clock
Content = tuple[int, int, int]  # samples, tokens, check: see Arrival.content


@dataclass(frozen=True)
class HeldRequest:
    """A request that was handed over and is not queued yet."""

    name: str
    content: Content
    prompt: Prompt
    params: Params
    listener: bool


class FollowingLLM(LLM):
    """Follows `guide` until the courses part; from there on it is an engine like any other."""

    def __init__(
        self, config: Mapping[str, Any], tape: Recorder, guide: Recorded, *, patience: float = PATIENCE
    ) -> None:
        """config: composed and plain. tape: records the new course, under the same guide."""
        self._tape, self._guide, self._patience = tape, guide, patience
        self._held: list[HeldRequest] = []
        self._names: dict[int, str] = {}  # number of a sample -> id of its request
        self._handed = 0
        self._waiting_since: float | None = None
        self._free = False  # whether turns are taken whatever is due
        self._over = False  # whether the place was reached where the recorded run was stopped
        self._build(config, say, {"tape": tape})

    def add(
        self, prompt: Prompt, params: Params = None, *, listener: bool = False, request_id: str | None = None
    ) -> str:
        """As LLM.add; a request that is not due yet is queued when it is."""
        ids = self._ids(prompt)
        content = ((params or self._defaults).n, len(ids), check_of(ids))
        self._handed += 1
        name = request_id or f"req-{self._handed}"
        self._guide.announce(content)
        self._held.append(HeldRequest(name, content, prompt, params, listener))
        self._meet()
        if self._over:
            super().cancel(name)
        return name

    def cancel(self, request_id: str) -> bool:
        for held in [held for held in self._held if held.name == request_id]:
            self._queue(held)
        return super().cancel(request_id)

    def has_work(self) -> bool:
        return bool(self._held) or super().has_work()

    def step(self) -> list[Delta]:
        """One turn, once everything has come that came before it."""
        if not self._free and self._meet():
            self._wait()
            return []
        self._waiting_since = None
        return super().step()

    def forget_prefixes(self) -> int:
        self._free = True
        try:
            return super().forget_prefixes()
        finally:
            self._free = False

    def _meet(self) -> bool:
        """Let happen what is due; whether a request is due that has not come."""
        while (due := self._tape.due(self._scheduler.position[1])) is not None:
            if isinstance(due, Arrival):
                held = next((held for held in self._held if held.content == due.content), None)
                if held is None:
                    return True
                self._names |= dict.fromkeys(range(due.number, due.number + due.samples), held.name)
                self._queue(held)
            elif isinstance(due, Closed):
                self._cut()
            elif not self._cancelled(due):
                self._guide.missed(due)
        while self._held and not self._guide.following:
            self._queue(self._held[0])
        return False

    def _queue(self, held: HeldRequest) -> None:
        self._held.remove(held)
        super().add(held.prompt, held.params, listener=held.listener, request_id=held.name)

    def _wait(self) -> None:
        """Not for ever: a recording that no longer fits must not stop the run."""
        now = time.perf_counter()
        self._waiting_since = self._waiting_since or now
        if now - self._waiting_since > self._patience:
            due = self._tape.due(self._scheduler.position[1])
            assert due is not None, "nobody waits without something being due"
            self._guide.missed(due)
        time.sleep(PAUSE)

    def _cancelled(self, due: End) -> bool:
        """Whether the request that ended was cancelled, and could be now."""
        return due.reason == "cancelled" and super().cancel(self._names.get(due.number, ""))

    def _cut(self) -> None:
        """The recorded run was stopped here: nothing goes on, and nothing begins any more."""
        self._guide.end()
        self._over = True
        for held in list(self._held):
            self._queue(held)
        for name in list(self._live):
            super().cancel(name)
