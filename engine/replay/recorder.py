"""Writes the course of an engine down as it happens: small, buffered, and nothing of it a clock.

Knows the scheduler's tape and the form of a course; nothing of tasks.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine.batch import Mode, ScheduledStep
from engine.replay.course import (
    CLOSED_HEAD,
    HEADER,
    Event,
    arrival_head,
    decode_head,
    end_head,
    prefill_head,
)
from engine.replay.follow import UNBOUND, Guide
from engine.scheduling.tape import Tape

if TYPE_CHECKING:
    from engine.request import Request

BUFFERED = 256  # lines


class Recorder(Tape):
    """A decode step like the one before it costs a comparison and an addition; only changes make lines.

    guide: is shown every line, and says how often a decode step may follow itself unannounced.
    """

    def __init__(self, path: Path, guide: Guide = UNBOUND) -> None:
        self._guide = guide
        self._file = path.open("w", encoding="utf-8")
        self._lines = [HEADER]
        self._open = 0  # unfinished samples
        self._head = ""  # of the line in progress; none: nothing is
        self._times = 0
        self._most: float = math.inf
        self._width = self._count = 0  # of the decode step that may be repeated; 0: none may

    def arrived(self, request: Request, applied: int) -> None:
        self._open += 1
        if request.index == 0:
            ids = request.prompt_ids
            self._begin(
                arrival_head(request.arrival, request.params.n, len(ids), zlib.crc32(ids.tobytes()), applied)
            )

    def launched(self, step: ScheduledStep, requests: Sequence[Request]) -> None:
        if step.width == self._width and len(step.rows) == self._count and not step.resume:
            self._times += 1
            if self._times > self._most:
                self._guide.exceeded()
                self._most = math.inf
        elif step.mode is Mode.VERIFY:
            self._begin(decode_head(step.width, step.resume, len(step.rows)))
            self._width, self._count = step.width, len(step.rows)
        else:
            each = zip(requests, step.bounds, step.query_lens, strict=True)
            self._begin(prefill_head([[request.arrival, start, count] for request, start, count in each]))

    def ended(self, request: Request, applied: int) -> None:
        self._open -= 1
        tokens = len(request.output_ids)
        self._begin(end_head(request.arrival, request.finish_reason or "", tokens, applied))
        if not self._open:
            self._finish()
            self._flush()

    def close(self) -> None:
        self._begin(CLOSED_HEAD)
        self._finish()
        self._flush()
        self._file.close()

    def due(self, applied: int) -> Event | None:
        """What has to happen before the next turn, if the guide knows of something."""
        return self._guide.due(self._times, applied)

    def _begin(self, head: str) -> None:
        """A new line; what was in progress is whole."""
        self._most = self._guide.begins(head, self._times)
        self._finish()
        self._head, self._times, self._count = head, 1, 0
        if len(self._lines) >= BUFFERED:
            self._flush()

    def _finish(self) -> None:
        if self._head:
            self._lines.append(f"{self._head},{self._times}]")
            self._head = ""

    def _flush(self) -> None:
        if self._lines:
            self._file.write("\n".join(self._lines) + "\n")
            self._file.flush()
            self._lines = []
