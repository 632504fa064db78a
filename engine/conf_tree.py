"""What conf/ offers: groups, their options, one line about each, and the defaults. Composes nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from engine.build import TARGET, target_class
from engine.errors import UserError

CONF = (
    Path(__file__).resolve().parents[1] / "conf"
)  # beside the package: checkout, editable install and wheel
ROOT_NAME = "config"
STUDIES = "sweep"  # the folder of committed sweeps: they are about runs and no part of a run's config
EXPERIMENTS = "experiment"  # those among them that answer a question, each with a page in docs/studies
_NESTED = re.compile(r"^\s*- /(\w+)@(\w+):", re.MULTILINE)  # a defaults entry that places a part under a key


@dataclass(frozen=True)
class Option:
    """One yaml of a group. summary: its first comment line. target: the class path, None where absent."""

    group: str
    name: str
    summary: str
    target: str | None
    parts: tuple[tuple[str, str], ...] = ()  # (key, group) of the parts that it nests

    def part_class(self) -> type | None:
        """The class that the option names; None for an option that only collects other values."""
        return None if self.target is None else target_class(self.target)


@dataclass(frozen=True)
class ConfTree:
    """groups: name -> option name -> Option. defaults: group -> option, in the order of the defaults list.
    scalars: the root's values. notes: what the root's yaml says of each scalar. studies: committed sweeps,
    experiments too, whose names differ from theirs."""

    groups: dict[str, dict[str, Option]]
    defaults: dict[str, str]
    scalars: dict[str, Any]
    notes: dict[str, str]
    studies: dict[str, Option] = field(default_factory=dict)


@cache
def conf_tree(conf: Path = CONF) -> ConfTree:
    """Read the folder once. Raises UserError where it is missing (a broken installation)."""
    root = conf / f"{ROOT_NAME}.yaml"
    if not root.is_file():
        raise UserError(f"{root} is missing: the installation is incomplete; install syncless again")
    text = root.read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    scalars = {key: value for key, value in document.items() if key not in ("defaults", "hydra")}
    groups = _groups(conf)
    studies = {
        option.name: option for key in (STUDIES, EXPERIMENTS) for option in groups.pop(key, {}).values()
    }
    return ConfTree(groups, _defaults(document["defaults"]), scalars, _notes(text, scalars), studies)


def _groups(conf: Path) -> dict[str, dict[str, Option]]:
    groups: dict[str, dict[str, Option]] = {}
    for path in sorted(conf.rglob("*.yaml")):
        group = path.parent.relative_to(conf).as_posix()
        if group != "." and group.partition("/")[0] != "hydra":
            groups.setdefault(group, {})[path.stem] = _option(group, path)
    return groups


def _option(group: str, path: Path) -> Option:
    text = path.read_text(encoding="utf-8")
    comments = (line[1:].strip() for line in text.splitlines() if line.startswith("#"))
    summary = next((line for line in comments if not line.startswith("@package")), "")
    target = next(
        (line.partition(":")[2] for line in text.splitlines() if line.startswith(f"{TARGET}:")), None
    )
    nested = tuple((key, inner) for inner, key in _NESTED.findall(text))
    return Option(group, path.stem, summary, target.partition("#")[0].strip() if target else None, nested)


def _defaults(entries: list[Any]) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for entry in entries:
        if isinstance(entry, dict):
            group, option = next(iter(entry.items()))
            if not group.startswith("override "):
                chosen[group] = str(option)
    return chosen


def _notes(text: str, scalars: dict[str, Any]) -> dict[str, str]:
    notes: dict[str, str] = {}
    for line in text.splitlines():
        key, _, rest = line.partition(":")
        if key in scalars and "#" in rest:
            notes[key] = rest.partition("#")[2].strip()
    return notes
