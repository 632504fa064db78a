"""Where step costs come from: the user's cache, a file, or a measurement; and the form they are written in.

Knows files and keys, and what of a measurement may be kept; nothing of how a step is measured. Free of torch.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from engine.calibrate import CHECKING, MEASURING, Measurement, Ratio
from engine.errors import UserError
from engine.models.embedded import cache_folder
from engine.runs import write_json
from speculative.width import StepCosts

logger = logging.getLogger("syncless")
STEP_COSTS = "step_costs.json"  # in a run folder
CACHED, MEASURE = "cached", "measure"
# Tables of a quiet machine agree within a tenth on what the widest step costs in plain ones; a false table
# that misled whole runs was off by more than half.
TOLERANCE = 0.15  # that a kept ratio may be off
AGAIN = f"{MEASURING} once more, as repeats differed"
STEADY = 0.25  # scatter up to which a measurement is kept
LOOKS = (CHECKING, f"{CHECKING} once more")  # one disturbed check disproves nothing


class Measures(Protocol):
    """What can measure steps (engine.calibrate.Gauge)."""

    def measure(self, what: str = MEASURING) -> Measurement:
        """The whole table. what: as progress is told."""

    def ratio(self, width: int, what: str = CHECKING) -> Ratio:
        """Of steps of one request and this width to plain ones, now."""


def costs_from(choice: str, key: Mapping[str, Any], widths: Sequence[int], gauge: Measures) -> StepCosts:
    """The table that `step_costs=choice` means. key: everything that the figures depend on.

    A cached table is checked at its widest step, and measured again, with a warning, where it is damaged or
    off. A file is used as it is: it repeats a run. UserError for one that cannot be read or lacks a width.
    """
    if choice not in (CACHED, MEASURE):
        return _given(Path(choice).expanduser(), widths)
    place = cached_file(key)
    found = _cached(place, widths) if choice == CACHED else None
    if found is not None and _holds(found, max(widths), place, gauge):
        return found
    return _measured(place, key, gauge)


def _holds(costs: StepCosts, widest: int, place: Path, gauge: Measures) -> bool:
    """Whether the widest step costs as many plain steps as the table says, as far as the scatter of the
    check can tell. Widths depend on ratios alone: a machine that is slower as a whole changes none."""
    kept, seen = costs.at(1, widest) / costs.at(1, 1), 0.0
    for what in LOOKS:
        now = gauge.ratio(widest, what)
        seen = now.value
        if max(kept / seen, seen / kept) <= (1 + TOLERANCE) * (1 + now.scatter):
            return True
    logger.warning(
        "the step costs in %s are off, perhaps measured while other programs used the machine: a step of "
        "width %d costs %.2f plain steps there and %.2f now; they are measured again",
        place,
        widest,
        kept,
        seen,
    )
    return False


def _measured(place: Path, key: Mapping[str, Any], gauge: Measures) -> StepCosts:
    """Measured now, a second time if the first one scatters; kept if it is steady."""
    found = gauge.measure()
    if found.scatter > STEADY:
        found = min(found, gauge.measure(AGAIN), key=lambda one: one.scatter)
    if found.scatter <= STEADY:
        _keep(place, key, found.costs)
        return found.costs
    logger.warning(
        "the step costs that were measured serve this run and are not kept: repeats of a step differ, or "
        "a wider step was cheaper than a narrower one, by %.0f%%, more than %.0f%%, as happens while other "
        "programs use the machine",
        100 * found.scatter,
        100 * STEADY,
    )
    return found.costs


def cached_file(key: Mapping[str, Any]) -> Path:
    """Where the table of these circumstances is kept."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
    return cache_folder() / "step_costs" / f"{digest}.json"


def as_document(costs: StepCosts, key: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Plain data for a JSON file."""
    return {
        "measured_for": dict(key or {}),
        "seconds": [[batch, width, cost] for (batch, width), cost in sorted(costs.seconds.items())],
        "resume": [[batch, cost] for batch, cost in sorted(costs.resume.items())],
    }


def from_document(document: Any) -> StepCosts:
    """ValueError for anything that is no table of positive seconds with the same widths, 1 among them, at
    every batch size."""
    try:
        seconds = {(int(b), int(w)): float(cost) for b, w, cost in document["seconds"]}
        resume = {int(b): float(cost) for b, cost in document["resume"]}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError("it is not a table of step costs") from error
    if any(size < 1 for pair in (*seconds, *zip(resume)) for size in pair):
        raise ValueError("it holds batch sizes or widths below 1")
    widths = {w for _, w in seconds}
    full = len(seconds) == len(widths) * len({b for b, _ in seconds})
    if 1 not in widths or not full:
        raise ValueError("it lacks widths at some batch size")
    if not all(0 < cost < float("inf") for cost in seconds.values()) or not all(
        0 <= cost < float("inf") for cost in resume.values()
    ):
        raise ValueError("it holds times that are no positive numbers")
    return StepCosts(seconds, resume)


def _read(path: Path, widths: Sequence[int]) -> StepCosts:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    costs = from_document(document)
    missing = sorted({1, *widths} - {width for _, width in costs.seconds})
    if missing:
        raise ValueError(f"it lacks width {', '.join(map(str, missing))}")
    return costs


def _given(path: Path, widths: Sequence[int]) -> StepCosts:
    try:
        return _read(path, widths)
    except (OSError, ValueError) as error:
        raise UserError(
            f"step_costs={path} cannot be used: {_why(error)}; give a "
            f"{STEP_COSTS} of a run with the same spec, or step_costs=cached"
        ) from error


def _cached(path: Path, widths: Sequence[int]) -> StepCosts | None:
    try:
        return _read(path, widths)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        logger.warning("the step costs in %s cannot be used (%s); they are measured again", path, _why(error))
        return None


def _why(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


def _keep(path: Path, key: Mapping[str, Any], costs: StepCosts) -> None:
    """Written whole or not at all: several engines may start at once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, as_document(costs, key))
    except OSError as error:
        logger.warning("the step costs cannot be kept in %s (%s)", path, _why(error))
