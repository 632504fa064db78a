"""A table of plans that were chosen by measurement, and its form in a file. Free of torch.

Knows places, plans and the circumstances that figures depend on; nothing of how they are measured.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from engine.kernel_choices.plans import CUDA, DIRECT, STAGES, Choices, Place, Plan

VERSION = 1
ADDED = {"turns": 1}  # fields of a plan that older tables do not have
INTERPRETER = "Triton's interpreter"  # the name of the device where there is no GPU
COMPILED = (DIRECT, *CUDA)  # kernels that have no interpreter


@dataclass(frozen=True)
class Circumstances:
    """What a choice depends on besides the product. gpu: its name; versions without build tags."""

    gpu: str
    torch: str
    triton: str

    @classmethod
    def here(cls, gpu: str) -> Circumstances:
        """Those of this process on a GPU of that name."""
        return cls(gpu, _version("torch"), _version("triton"))

    def __str__(self) -> str:
        return f"{self.gpu}, torch {self.torch}, triton {self.triton}"


@dataclass(frozen=True)
class Entry:
    """What was found for one place. plan None: separate operations and the library's product were fastest.

    seconds: of the plan, or of the library where that won; library: of the latter. instead: what was best of
    the rest, where the plan's kernel is one that not every machine can use (plans.CUDA); None: the library.
    """

    plan: Plan | None
    seconds: float
    library: float
    instead: Entry | None = None

    @property
    def in_cuda(self) -> bool:
        """Whether the plan's kernel is written in CUDA C++."""
        return self.plan is not None and self.plan.kernel in CUDA

    def without_cuda(self) -> Entry:
        """The entry for a machine that cannot use such kernels."""
        return (self.instead or Entry(None, self.library, self.library)) if self.in_cuda else self


@dataclass(frozen=True)
class ChoiceTable:
    """Entries by place, measured under the same circumstances."""

    measured_on: Circumstances
    entries: Mapping[Place, Entry]

    def choices(self) -> Choices:
        return Choices({place: entry.plan for place, entry in self.entries.items()})

    def over(self, other: ChoiceTable) -> ChoiceTable:
        """These entries, and those of `other` for places that these lack."""
        return ChoiceTable(self.measured_on, {**other.entries, **self.entries})

    def without_cuda(self) -> ChoiceTable:
        """For machines that cannot use kernels in CUDA C++."""
        others = {place: entry.without_cuda() for place, entry in self.entries.items()}
        return ChoiceTable(self.measured_on, others)


def as_document(table: ChoiceTable) -> dict[str, Any]:
    """Plain data for a JSON file; microseconds, since people read it."""
    return {
        "version": VERSION,
        **dataclasses.asdict(table.measured_on),
        "entries": [
            {**dataclasses.asdict(place), **_as_row(entry)}
            for place, entry in sorted(table.entries.items(), key=lambda pair: _order(pair[0]))
        ],
    }


def _as_row(entry: Entry) -> dict[str, Any]:
    """Without the field `instead` where there is nothing in it."""
    row = {
        "plan": None if entry.plan is None else dataclasses.asdict(entry.plan),
        "us": round(1e6 * entry.seconds, 3),
        "library_us": round(1e6 * entry.library, 3),
    }
    return row if entry.instead is None else {**row, "instead": _as_row(entry.instead)}


def from_document(document: Any) -> ChoiceTable:
    """ValueError, with a clause that says why, for anything that is no table or holds an impossible plan."""
    if not isinstance(document, Mapping) or document.get("version") != VERSION:
        raise ValueError("it is not a table of kernel choices that this version reads")
    try:
        where = Circumstances(*(str(document[field.name]) for field in fields(Circumstances)))
        entries = dict(_entry(row) for row in document["entries"])
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError("it is not a table of kernel choices") from error
    if where.gpu == INTERPRETER:
        _check_interpretable(entries.values())
    return ChoiceTable(where, entries)


def _check_interpretable(entries: Iterable[Entry]) -> None:
    kernels = {entry.plan.kernel for entry in entries if entry.plan is not None}
    compiled = next((kernel for kernel in COMPILED if kernel in kernels), None)
    if compiled is not None:
        raise ValueError(f"it holds a plan of kernel {compiled}, which cannot be interpreted")


def _entry(row: Mapping[str, Any]) -> tuple[Place, Entry]:
    place = Place(
        str(row["stage"]), str(row["dtype"]), _whole(row["tokens"]), _whole(row["n"]), _whole(row["k"])
    )
    if place.stage not in STAGES:
        raise ValueError(f"it holds a stage {place.stage!r}, which is none of {', '.join(STAGES)}")
    return place, _found(place, row)


def _found(place: Place, row: Mapping[str, Any]) -> Entry:
    plan = None if row["plan"] is None else _plan(row["plan"])
    problem = place.problem(plan) if plan is not None else ""
    if problem:
        raise ValueError(f"its plan for {name_of(place)} cannot work: {problem}")
    seconds, library = float(row["us"]) / 1e6, float(row["library_us"]) / 1e6
    rest = row.get("instead")
    entry = Entry(plan, seconds, library, None if rest is None else _found(place, rest))
    if entry.instead is not None and (not entry.in_cuda or entry.instead.in_cuda):
        raise ValueError(
            f"for {name_of(place)} it holds a plan and another: the first must be of kernel "
            f"{' or '.join(CUDA)}, the other must not"
        )
    return entry


def _plan(values: Mapping[str, Any]) -> Plan:
    """A Plan of exactly its fields, each of its own type; tables from before ADDED lack that."""
    given = {field.name: type(field.default) for field in fields(Plan)}
    given |= {"kernel": str, "block_n": int, "block_k": int}
    values = {**ADDED, **values}
    if set(values) != set(given) or any(type(values[name]) is not kind for name, kind in given.items()):
        raise ValueError(f"it holds a plan {dict(values)!r:.120} of another form")
    return Plan(**values)


def _whole(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"it holds {value!r:.20} where a positive whole number belongs")
    return value


def name_of(place: Place) -> str:
    """ "linear bfloat16, 1 token, 4096 x 4096" """
    tokens = f"{place.tokens} token{'s' * (place.tokens > 1)}"
    return f"{place.stage} {place.dtype}, {tokens}, {place.n} x {place.k}"


def _order(place: Place) -> tuple[Any, ...]:
    return (place.dtype, place.k, place.n, list(STAGES).index(place.stage), place.tokens)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return "none"
