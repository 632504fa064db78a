"""The course of one engine as lines: what arrived, which step was launched, what ended, in that order.

Knows how a course is written, read and told to people; neither records nor follows one.
"""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

VERSION = 1
HEADER = json.dumps({"course": VERSION})
COURSE = "schedule.jsonl"  # of a run's first engine

CLOSED_HEAD = '["."'


# Lines without their end, by hand: dataclasses and json.dumps would be the dearest part of recording a step.


def arrival_head(number: int, samples: int, tokens: int, crc: int, applied: int) -> str:
    """See Arrival."""
    return f'["+",{number},{samples},{tokens},{crc},{applied}'


def end_head(number: int, reason: str, tokens: int, applied: int) -> str:
    """See End; `reason` is a plain word."""
    return f'["-",{number},"{reason}",{tokens},{applied}'


def prefill_head(chunks: list[list[int]]) -> str:
    """See Prefill."""
    return f'["p",{chunks}'


def decode_head(width: int, resume: bool, requests: int) -> str:
    """See Decode."""
    return f'["d",{width},{resume:d},{requests}'


@dataclass(frozen=True, slots=True)
class Arrival:
    """`samples` samples of one prompt of `tokens` ids whose CRC-32 is `crc` were queued; the first is request
    `number`. applied: steps whose results were applied by then."""

    number: int
    samples: int
    tokens: int
    crc: int
    applied: int

    def head(self) -> str:
        return arrival_head(self.number, self.samples, self.tokens, self.crc, self.applied)

    def __str__(self) -> str:
        return f"the arrival of request {self.number} ({self.tokens} tokens, check {self.crc:08x})"

    @property
    def content(self) -> tuple[int, int, int]:
        """What it is recognised by, whatever its number."""
        return self.samples, self.tokens, self.crc


@dataclass(frozen=True, slots=True)
class End:
    """Request `number` ended after `tokens` tokens of output."""

    number: int
    reason: str
    tokens: int
    applied: int

    def head(self) -> str:
        return end_head(self.number, self.reason, self.tokens, self.applied)

    def __str__(self) -> str:
        return f"the end of request {self.number} ({self.reason}, {self.tokens} tokens)"


@dataclass(frozen=True, slots=True)
class Prefill:
    """A prefill step. chunks: (request, tokens that it had before, tokens computed)."""

    chunks: tuple[tuple[int, int, int], ...]

    def head(self) -> str:
        return prefill_head([list(chunk) for chunk in self.chunks])

    def __str__(self) -> str:
        parts = (f"{number} ({count} tokens behind {start})" for number, start, count in self.chunks)
        return f"a prefill of request {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Decode:
    """A decode step of `requests` requests: all that are past their prefill, less those that are sure to end
    with the step in flight and those that wait for pages. resume: some come back from a pause of drafting (in
    the first of several steps)."""

    width: int
    resume: bool
    requests: int

    def head(self) -> str:
        return decode_head(self.width, self.resume, self.requests)

    def __str__(self) -> str:
        return f"a decode step of {self.requests} request(s), width {self.width}"


@dataclass(frozen=True, slots=True)
class Closed:
    """The engine was closed: nothing more happened. Requests that were open have no end."""

    applied: ClassVar[int] = 0  # its place is behind everything, that is enough

    def head(self) -> str:
        return CLOSED_HEAD

    def __str__(self) -> str:
        return "the end of the run"


Entry = Arrival | End | Prefill | Decode | Closed
Event = Arrival | End | Closed  # comes from outside, or out of results; the others are launches


@dataclass(frozen=True, slots=True)
class Line:
    """times: how often a Decode was launched in a row; 1 for everything else."""

    entry: Entry
    times: int = 1

    def text(self) -> str:
        """The line of the file: JSON."""
        return f"{self.entry.head()},{self.times}]"


def check_of(ids: Sequence[int]) -> int:
    """CRC-32 of token ids."""
    return zlib.crc32(array("i", ids))


def read_course(path: Path) -> list[Line]:
    """The lines of a file; a torn last one is left out. ValueError, with a clause for people, for any other
    form."""
    text = path.read_text(encoding="utf-8")
    first, *rest = text.split("\n")
    if first != HEADER:
        raise ValueError(f"{path.name} was written by another version of Syncless")
    whole = rest[:-1]  # behind the last line break there is nothing, or half a line
    try:
        return [_parse(json.loads(line)) for line in whole]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path.name} is damaged") from error


def entry_of(head: str) -> Entry:
    """The entry that a head was made of."""
    return _parse(json.loads(f"{head},1]")).entry


def steps_of(lines: Iterable[Line]) -> int:
    """Launched steps."""
    return sum(line.times for line in lines if isinstance(line.entry, Prefill | Decode))


def _parse(fields: Sequence[Any]) -> Line:
    kind, *values, times = fields
    return Line(_entry(kind, values), int(times))


def _entry(kind: Any, values: Sequence[Any]) -> Entry:
    if kind == "+":
        return Arrival(*map(int, _exactly(values, 5)))
    if kind == "-":
        number, reason, *rest = _exactly(values, 4)
        return End(int(number), str(reason), *map(int, rest))
    if kind == "p":
        (chunks,) = _exactly(values, 1)
        return Prefill(tuple((int(n), int(start), int(count)) for n, start, count in chunks))
    if kind == "d":
        width, resume, requests = _exactly(values, 3)
        return Decode(int(width), bool(resume), int(requests))
    if kind == ".":
        return Closed()
    raise ValueError(f"unknown kind {kind!r}")


def _exactly(values: Sequence[Any], count: int) -> Sequence[Any]:
    if len(values) != count:
        raise ValueError(f"{len(values)} fields instead of {count}")
    return values
