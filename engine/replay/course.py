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


@dataclass(frozen=True, slots=True)
class Arrival:
    """`samples` samples of one prompt of `tokens` ids whose CRC-32 is `crc` were queued; the first is request
    `number`. applied: steps whose results were applied by then."""

    number: int
    samples: int
    tokens: int
    crc: int
    applied: int

    def line(self) -> list[Any]:
        return ["+", self.number, self.samples, self.tokens, self.crc, self.applied]

    def __str__(self) -> str:
        return f"the arrival of request {self.number} ({self.tokens} tokens, check {self.crc:08x})"

    @property
    def content(self) -> tuple[int, int, int]:
        """What it is recognised by, whatever its number."""
        return self.samples, self.tokens, self.crc


@dataclass(frozen=True, slots=True)
class End:
    """Request `number` ended after `tokens` tokens of output, whose CRC-32 is `crc`."""

    number: int
    reason: str
    tokens: int
    crc: int
    applied: int

    def line(self) -> list[Any]:
        return ["-", self.number, self.reason, self.tokens, self.crc, self.applied]

    def __str__(self) -> str:
        return f"the end of request {self.number} ({self.reason}, {self.tokens} tokens, check {self.crc:08x})"


@dataclass(frozen=True, slots=True)
class Prefill:
    """A prefill step. chunks: (request, tokens that it had before, tokens computed)."""

    chunks: tuple[tuple[int, int, int], ...]

    def line(self) -> list[Any]:
        return ["p", self.chunks]

    def __str__(self) -> str:
        parts = (f"{number} ({count} tokens behind {start})" for number, start, count in self.chunks)
        return f"a prefill of request {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Decode:
    """A decode step of the requests of the one before it, without `gone` and with `came` behind them. resume:
    some come back from a pause of drafting (in the first of several steps)."""

    width: int
    resume: bool
    gone: tuple[int, ...]
    came: tuple[int, ...]

    def line(self) -> list[Any]:
        return ["d", self.width, int(self.resume), self.gone, self.came]

    def __str__(self) -> str:
        change = [f"without {_listed(self.gone)}"] if self.gone else []
        change += [f"with {_listed(self.came)} besides"] if self.came else []
        members = " and ".join(change) or "of the same requests"
        return f"a decode step of width {self.width} {members}"


@dataclass(frozen=True, slots=True)
class Closed:
    """The engine was closed: nothing more happened. Requests that were open have no end."""

    applied: ClassVar[int] = 0  # its place is behind everything, that is enough

    def line(self) -> list[Any]:
        return ["."]

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
        """The line of the file."""
        fields = self.entry.line()
        if isinstance(self.entry, Decode):
            fields.append(self.times)
        return json.dumps(fields, separators=(",", ":"))


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


def steps_of(lines: Iterable[Line]) -> int:
    """Launched steps."""
    return sum(line.times for line in lines if isinstance(line.entry, Prefill | Decode))


def _parse(fields: Sequence[Any]) -> Line:
    kind, *values = fields
    if kind == ".":
        return Line(Closed())
    if kind == "+":
        return Line(Arrival(*map(int, _exactly(values, 5))))
    if kind == "-":
        number, reason, *rest = _exactly(values, 5)
        return Line(End(int(number), str(reason), *map(int, rest)))
    if kind == "p":
        (chunks,) = _exactly(values, 1)
        return Line(Prefill(tuple((int(n), int(start), int(count)) for n, start, count in chunks)))
    if kind == "d":
        width, resume, gone, came, times = _exactly(values, 5)
        return Line(Decode(int(width), bool(resume), _numbers(gone), _numbers(came)), int(times))
    raise ValueError(f"unknown kind {kind!r}")


def _exactly(values: Sequence[Any], count: int) -> Sequence[Any]:
    if len(values) != count:
        raise ValueError(f"{len(values)} fields instead of {count}")
    return values


def _numbers(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _listed(numbers: Sequence[int], most: int = 8) -> str:
    more = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    return ", ".join(map(str, numbers[:most])) + more
