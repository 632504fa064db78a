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
from engine.replay.course import HEADER, Arrival, Closed, Decode, End, Entry, Event, Line, Prefill, check_of
from engine.replay.follow import UNBOUND, Guide
from engine.scheduling.tape import Tape

if TYPE_CHECKING:
    from engine.request import Request

BUFFERED = 256  # lines


class Recorder(Tape):
    """A decode step like the one before it costs a comparison and an addition; only changes make lines.

    guide: is shown every entry, and says how often a decode step may follow itself unannounced.
    """

    def __init__(self, path: Path, guide: Guide = UNBOUND) -> None:
        self._guide = guide
        self._file = path.open("w", encoding="utf-8")
        self._lines = [HEADER]
        self._open = 0  # unfinished samples
        self._entry: Entry | None = None  # of the line in progress
        self._times = 0
        self._most: float = math.inf
        self._rows: tuple[int, ...] = ()  # of the decode step that may be repeated; none: no line in progress
        self._width = 0
        self._members: list[int] = []  # of the last decode step

    def arrived(self, request: Request, applied: int) -> None:
        self._open += 1
        if request.index == 0:
            ids, samples = request.prompt_ids, request.params.n
            crc = zlib.crc32(ids.tobytes())  # as check_of, without a list
            self._begin(Arrival(request.arrival, samples, len(ids), crc, applied))

    def launched(self, step: ScheduledStep, requests: Sequence[Request]) -> None:
        if step.rows == self._rows and step.width == self._width and not step.resume:
            self._times += 1
            if self._times > self._most:
                self._guide.exceeded()
                self._most = math.inf
        elif step.mode is Mode.VERIFY:
            self._decode(step, requests)
        else:
            numbers = (request.arrival for request in requests)
            self._begin(Prefill(tuple(zip(numbers, step.bounds, step.query_lens, strict=True))))

    def ended(self, request: Request, applied: int) -> None:
        self._open -= 1
        ids, reason = request.output_ids, request.finish_reason or ""
        self._begin(End(request.arrival, reason, len(ids), check_of(ids), applied))
        if not self._open:
            self._finish()
            self._flush()

    def close(self) -> None:
        self._begin(Closed())
        self._finish()
        self._flush()
        self._file.close()

    def due(self, applied: int) -> Event | None:
        """What has to happen before the next turn, if the guide knows of something."""
        return self._guide.due(self._times, applied)

    def _decode(self, step: ScheduledStep, requests: Sequence[Request]) -> None:
        before, members = self._members, [request.arrival for request in requests]
        stay = set(members)
        gone = [number for number in before if number not in stay]
        kept = [number for number in before if number in stay] if gone else before
        if members[: len(kept)] != kept:  # one that had sat out is back at its place
            gone, kept = before, []
        self._begin(Decode(step.width, step.resume, tuple(gone), tuple(members[len(kept) :])))
        self._members = members
        self._rows, self._width = step.rows, step.width

    def _begin(self, entry: Entry) -> None:
        """A new line; what was in progress is whole."""
        self._most = self._guide.begins(entry, self._times)
        self._finish()
        self._entry, self._times, self._rows = entry, 1, ()
        if len(self._lines) >= BUFFERED:
            self._flush()

    def _finish(self) -> None:
        if self._entry is not None:
            self._lines.append(Line(self._entry, self._times).text())
            self._entry = None

    def _flush(self) -> None:
        if self._lines:
            self._file.write("\n".join(self._lines) + "\n")
            self._file.flush()
            self._lines = []
