"""Where step costs come from: the user's cache, a file, or a measurement; and the form they are written in.

Knows files and keys, nothing of how a step is measured. Free of torch.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.errors import UserError
from engine.models.embedded import cache_folder
from engine.runs import write_json
from speculative.width import StepCosts

logger = logging.getLogger("syncless")
STEP_COSTS = "step_costs.json"  # in a run folder
CACHED, MEASURE = "cached", "measure"


def costs_from(
    choice: str, key: Mapping[str, Any], widths: Sequence[int], measure: Callable[[], StepCosts]
) -> StepCosts:
    """The table that `step_costs=choice` means. key: everything that the figures depend on.

    UserError for a file that cannot be read or lacks a width. A damaged cache is measured again, with a
    warning.
    """
    if choice not in (CACHED, MEASURE):
        return _given(Path(choice).expanduser(), widths)
    place = cached_file(key)
    found = _cached(place, widths) if choice == CACHED else None
    if found is None:
        found = measure()
        _keep(place, key, found)
    return found


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
            f"step_costs={path} cannot be used: {getattr(error, 'strerror', None) or error}; give a "
            f"{STEP_COSTS} of a run with the same spec, or step_costs=cached"
        ) from error


def _cached(path: Path, widths: Sequence[int]) -> StepCosts | None:
    if not path.is_file():
        return None
    try:
        return _read(path, widths)
    except (OSError, ValueError) as error:
        logger.warning("the step costs in %s cannot be used (%s); they are measured again", path, error)
        return None


def _keep(path: Path, key: Mapping[str, Any], costs: StepCosts) -> None:
    """Written whole or not at all: several engines may start at once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, as_document(costs, key))
    except OSError as error:
        logger.warning("the step costs cannot be kept in %s (%s)", path, error.strerror or error)
