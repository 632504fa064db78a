"""From a study and a command line to the lines of its cells: every combination, without composing any.

Knows Hydra's override grammar (choices, ranges), not what a key means.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from engine.compose import readable_error
from engine.conf_tree import conf_tree
from engine.errors import UserError
from engine.overrides import check_overrides
from engine.sweeps.study import Study


@dataclass(frozen=True)
class Line:
    """One command line. overrides: as a user would type them. values: key -> the value in plain data."""

    overrides: tuple[str, ...]
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Axis:
    """One key and all its values; a fixed one has a single value."""

    key: str
    values: tuple[str, ...]

    @property
    def fixed(self) -> bool:
        return len(self.values) == 1

    def line(self, value: str) -> str:
        return f"{self.key}={value}"


def axes_of(study: Study, overrides: Sequence[str]) -> list[Axis]:
    """The study's overrides with the user's in place of those with the same key, then the user's others.

    Raises one UserError for every unknown group, option and key, before a cell is composed.
    """
    own = _parsed(study.config.overrides)
    given = _parsed(overrides)
    return [*({**own, **given}).values()]


def lines_of(axes: Sequence[Axis], extra: Sequence[Sequence[str]] = ()) -> list[Line]:
    """Every combination; then the extra cells, beside the overrides that do not vary."""
    grid = [[axis.line(value) for axis, value in zip(axes, values, strict=True)] for values in _product(axes)]
    fixed = {axis.key: axis for axis in axes if axis.fixed}
    more = [{**fixed, **_parsed(cell)} for cell in extra]
    beside = [[axis.line(value) for axis in cell.values() for value in axis.values] for cell in more]
    return [line_of(overrides) for overrides in (*grid, *beside)]


def value_at(config: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key; None where there is none, or a whole node."""
    node: Any = config
    for name in key.split("."):
        node = node.get(name) if isinstance(node, Mapping) else None
    return None if isinstance(node, Mapping) else node


def _product(axes: Sequence[Axis]) -> list[tuple[str, ...]]:
    return list(itertools.product(*(axis.values for axis in axes)))


def _parsed(overrides: Sequence[str]) -> dict[str, Axis]:
    checked = check_overrides(overrides, conf_tree(), sweep=True)
    problems = list(checked.problems)
    axes: dict[str, Axis] = {}
    for line in checked.plain:
        try:
            axis = _axis(OverridesParser.create().parse_override(line))
        except HydraException as error:
            problems.append(f"{line} cannot be read: {readable_error(error)}")
            continue
        axes[axis.key] = axis
    if problems:
        raise UserError("\n".join(problems))
    return axes


def _axis(override: Override) -> Axis:
    key = override.get_key_element()
    if not override.is_sweep_override():
        return Axis(key, (override.get_value_element_as_str(),))
    if not override.is_discrete_sweep():
        raise HydraException("an interval has no end of values: give a range or choices")
    return Axis(key, tuple(str(value) for value in override.sweep_string_iterator()))


def line_of(overrides: Sequence[str]) -> Line:
    """A line of overrides that are known to be readable and to have one value each."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return Line(tuple(overrides), {override.get_key_element(): override.value() for override in parsed})
