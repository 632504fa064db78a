"""A study: the command line of a sweep as a file, and the settings of every sweep. Starts nothing.

Knows conf/sweep/ and its schema, not what the overrides in it mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from engine.build import choice, make_config, number
from engine.conf_tree import CONF, STUDIES, conf_tree
from engine.errors import UserError
from engine.typed import nearest

PLAIN = "none"  # the option without overrides of its own: what -m alone uses


class Study:
    """What a file of conf/sweep names: `name` (null for a plain -m) and its settings."""

    @dataclass(frozen=True)
    class Config:
        """overrides: a command line; the user's takes the place of those with the same key. extra: further
        command lines, each beside those of `overrides` that do not vary. baseline: overrides of the cells
        that speed-ups are measured against, null: none. timeout: seconds a job may take. fail_fast: start no
        job after one that failed. strict: exit code 1 when a job failed. figure: dotted name in result.json
        that jobs are compared by, null: the task's own. better: which end of it. trials: so many of the
        cells, chosen by Optuna from the results so far; null: all. batch: trials that are chosen at a time.
        seed: of that choice."""

        overrides: tuple[str, ...] = ()
        extra: tuple[tuple[str, ...], ...] = ()
        baseline: tuple[str, ...] | None = None
        timeout: float | None = number(3600.0, gt=0)
        fail_fast: bool = False
        strict: bool = False
        figure: str | None = None
        better: str = choice("higher", ("higher", "lower"))
        trials: int | None = number(None, ge=1)
        batch: int = number(1, ge=1)
        seed: int = number(0, ge=0, lt=2**32)

    def __init__(self, config: Config, name: str | None = None) -> None:
        self.config = config
        self.name = name


def load_study(name: str | None, settings: Sequence[str], group: str = STUDIES) -> Study:
    """conf/`group`/`name`.yaml with `sweep.key=value` settings over it; UserError names what is wrong."""
    options = [option.name for option in conf_tree().studies.values() if option.group == group]
    if name is not None and name not in options:
        raise UserError(
            f"{group}={name}: there is no such study; there are {', '.join(options)}{nearest(name, options)}"
        )
    path = CONF / STUDIES / f"{PLAIN}.yaml" if name is None else CONF / group / f"{name}.yaml"
    text = path.read_text(encoding="utf-8")
    node: dict[str, Any] = yaml.safe_load(text)
    return study_from(node, None if name == PLAIN else name, settings)


def study_from(node: Mapping[str, Any], name: str | None, settings: Sequence[str]) -> Study:
    """A study of plain data, with settings over it."""
    values = {**node, **dict(_setting(line) for line in settings)}
    return Study(make_config(Study, values, STUDIES), name)


def _setting(line: str) -> tuple[str, Any]:
    try:
        override = OverridesParser.create().parse_override(line)
    except HydraException as error:
        raise UserError(f"{line} cannot be read: {str(error).splitlines()[0]}") from error
    if override.is_sweep_override():
        raise UserError(f"{line}: settings of a sweep hold for all of it; give one value")
    return override.key_or_group.partition(".")[2], override.value()
