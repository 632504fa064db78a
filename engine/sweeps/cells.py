"""A command line with several values to cells: each composed and judged before anything starts.

Hydra would check the overrides that do not vary against the default options only, and stop at the first cell
that does not compose. Knows command lines and verdicts; runs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine import rules
from engine.build import TARGET, target_class
from engine.compose import Draft, Resolved, compose_draft
from engine.conf_tree import conf_tree
from engine.errors import UserError
from engine.overrides import chosen_options
from engine.provenance import config_hash
from engine.sweeps.axes import Line, value_at
from engine.sweeps.states import OK, REJECTED
from engine.tasks.base import STDIN_TURNS
from engine.workloads.single import STDIN

ID_LENGTH = 12
OUTPUT_PATHS = (("task", "output"),)  # where a run writes does not make it another run
SHOWN_PROBLEMS = 12


@dataclass(frozen=True)
class Cell:
    """One combination. id: of its resolved config. choices: group -> option. varied: what differs between the
    cells. duplicates: other overrides that compose to the same config, which therefore runs once."""

    id: str
    overrides: tuple[str, ...]
    choices: Mapping[str, str]
    varied: Mapping[str, Any]
    verdict: str
    reason: str | None = None
    duplicates: tuple[tuple[str, ...], ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def title(self) -> str:
        """What tells it from the others: what it sets, and the options it has."""
        own = {override.partition("=")[0] for override in self.overrides}
        shown = {k: v for k, v in self.varied.items() if k in own or k in self.choices}
        return " ".join(f"{key}={_plain(value)}" for key, value in shown.items()) or "the only cell"


def judged(lines: Sequence[Line], varying: Sequence[str] | None = None) -> tuple[Cell, ...]:
    """The cells of the lines, each once, in their order. varying: keys that differ between cells, where these
    lines are not all of them."""
    found = [_cell(line) for line in lines]
    keys = _varying(found, lines) if varying is None else varying
    varied = [
        replace(cell, varied=_varied(cell, line, keys)) for cell, line in zip(found, lines, strict=True)
    ]
    return _merged(varied)


def require_one(cells: Sequence[Cell]) -> None:
    """UserError with every reason when no cell can run: then the command line is wrong, not a cell of it."""
    if any(cell.verdict == OK for cell in cells):
        return
    reasons = list(dict.fromkeys(line for cell in cells for line in (cell.reason or "").split("\n")))
    more = len(reasons) - SHOWN_PROBLEMS
    raise UserError(
        "\n".join([*reasons[:SHOWN_PROBLEMS], *([f"and {more} more like these"] if more > 0 else [])])
    )


def identity(config: Mapping[str, Any]) -> str:
    """Hash of a resolved config without Hydra's node (it has none) and without output paths."""
    parts = {key: dict(node) if isinstance(node, Mapping) else node for key, node in config.items()}
    for group, name in OUTPUT_PATHS:
        if isinstance(parts.get(group), dict):
            parts[group].pop(name, None)
    return config_hash(parts)[:ID_LENGTH]


def _plain(value: Any) -> str:
    """As it is written on a command line."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def _cell(line: Line) -> Cell:
    overrides = line.overrides
    try:
        draft = compose_draft(overrides)
    except UserError as error:  # nothing composes: there is no config to take the hash of
        unknown = config_hash({"overrides": list(overrides)})[:ID_LENGTH]
        choices = chosen_options(overrides, conf_tree())
        return Cell(unknown, overrides, choices, {}, REJECTED, str(error))
    problems = _problems(draft)
    verdict, reason = (REJECTED, "\n".join(problems)) if problems else (OK, None)
    config = draft.resolved.cfg
    return Cell(identity(config), overrides, draft.resolved.choices, {}, verdict, reason, config=config)


def _problems(draft: Draft) -> list[str]:
    resolved = draft.resolved
    return list(draft.problems) or [*rules.violations(resolved), *_input_problems(resolved)]


def _input_problems(resolved: Resolved) -> list[str]:
    """A job of a sweep has no standard input, so nothing that waits for it can run."""
    prompt, task = resolved.cfg.get("prompt"), resolved.cfg["task"]
    if prompt == STDIN:
        return ["prompt=- reads standard input, which a job of a sweep does not have; give the text itself"]
    if prompt is None and getattr(target_class(task[TARGET]), "asks", None) == STDIN_TURNS:
        return [
            f"task={resolved.choices.get('task')} reads its turns from standard input, which a job of a "
            "sweep does not have; use task=generate, or prompt=TEXT for a single turn"
        ]
    return []


def _varying(cells: Sequence[Cell], lines: Sequence[Line]) -> list[str]:
    """Keys that some line sets and that have several values in the cells that know them, as they appear."""
    pairs = list(zip(cells, lines, strict=True))
    keys = dict.fromkeys(key for line in lines for key in line.values)
    seen = {key: [_value(cell, line, key) for cell, line in pairs] for key in keys}
    return [key for key, values in seen.items() if len({repr(v) for v in values if v is not None}) > 1]


def _varied(cell: Cell, line: Line, keys: Iterable[str]) -> dict[str, Any]:
    values = {key: _value(cell, line, key) for key in keys}
    return {key: value for key, value in values.items() if value is not None or key in line.values}


def _value(cell: Cell, line: Line, key: str) -> Any:
    """As the line sets it; else the group's option or the composed value; None where there is no such key."""
    if key in line.values:
        return line.values[key]
    return cell.choices.get(key, value_at(cell.config, key))


def _merged(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    once: dict[str, Cell] = {}
    for cell in cells:
        first = once.get(cell.id)
        once[cell.id] = (
            cell if first is None else replace(first, duplicates=(*first.duplicates, cell.overrides))
        )
    return tuple(once.values())
