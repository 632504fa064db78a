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

INSTEAD = {"prompt": ("workload", "arrivals"), "workload": ("prompt",)}  # what is asked has one source


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
    """The study's overrides, narrowed by the user's.

    Raises one UserError for every unknown group, option and key, before a cell is composed.
    """
    return list(_over(_parsed(study.config.overrides), _parsed(overrides)).values())


def lines_of(axes: Sequence[Axis]) -> list[Line]:
    """Every combination."""
    grid = itertools.product(*([axis.line(value) for value in axis.values] for axis in axes))
    return [line_of(overrides) for overrides in grid]


def extra_lines(axes: Sequence[Axis], extra: Sequence[Sequence[str]]) -> list[Line]:
    """Those of further command lines, each beside the overrides that do not vary."""
    return [line for overrides in extra for line in lines_of(_beside(axes, _parsed(overrides)))]


def value_at(config: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key; None where there is none, or a whole node."""
    node: Any = config
    for name in key.split("."):
        node = node.get(name) if isinstance(node, Mapping) else None
    return None if isinstance(node, Mapping) else node


def _beside(axes: Sequence[Axis], given: Mapping[str, Axis]) -> list[Axis]:
    whole = _over({axis.key: axis for axis in axes}, given)
    return [axis for axis in whole.values() if axis.fixed or axis.key in given]


def _over(base: Mapping[str, Axis], given: Mapping[str, Axis]) -> dict[str, Axis]:
    """`given` in place of the axes with the same key, then its others. Where it exchanges a group's option,
    what `base` sets inside that group goes: it was meant for another part. So does what cannot stand beside
    what it gives."""
    exchanged = {
        key for key in given if key in conf_tree().groups and not _narrows(given[key], base.get(key))
    }
    exchanged |= {other for key in given for other in INSTEAD.get(_root(key), ())}
    kept = {key: axis for key, axis in base.items() if key in given or _root(key) not in exchanged}
    return {**kept, **given}


def _narrows(axis: Axis, former: Axis | None) -> bool:
    return former is not None and {*axis.values} <= {*former.values}


def _root(key: str) -> str:
    """ "spec" of spec.num_steps and of attention@spec.draft_attention."""
    return key.rpartition("@")[2].partition(".")[0]


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
    values = tuple(str(value) for value in override.sweep_string_iterator())
    if not values:
        raise HydraException("it has no values")
    return Axis(key, values)


def line_of(overrides: Sequence[str]) -> Line:
    """A line of overrides that are known to be readable and to have one value each."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return Line(tuple(overrides), {override.get_key_element(): override.value() for override in parsed})
