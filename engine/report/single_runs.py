"""Run folders that belong to no sweep, gathered into sweeps so that they can be compared.

Importable without torch. Knows the run folder's form, not what the figures mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from engine.errors import UserError
from engine.report.rows import Row, State, Sweep
from engine.runs import RESULT, SNAPSHOT, read_run

ID_LENGTH = 12
Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Single:
    """One run folder as it was read. settings: what its user chose, by dotted key."""

    path: Path
    settings: Mapping[str, Any]
    overrides: Sequence[str]
    choices: Mapping[str, str]
    facts: Mapping[str, Any]
    result: Mapping[str, Any]
    broken: str | None

    @property
    def id(self) -> str:
        return str(self.facts["config_hash"])[:ID_LENGTH]


def read_single(directories: Sequence[Path]) -> list[Sweep]:
    """Runs of different configs form one sweep; a config that comes again goes to the next sweep, so that
    the same command at two commits is compared."""
    singles = [_single(path) for path in directories]
    keys = _differing([single.settings for single in singles])
    sweeps: list[list[Single]] = []
    for single in singles:
        free = next((sweep for sweep in sweeps if single.id not in {other.id for other in sweep}), None)
        if free is None:
            sweeps.append(free := [])
        free.append(single)
    return [Sweep(path=runs[0].path, rows=[_row(run, keys) for run in runs]) for runs in sweeps]


def _single(path: Path) -> Single:
    if not path.is_dir():
        raise UserError(f"{path} is no folder: name the folder of a sweep or of a run")
    if not (path / SNAPSHOT).is_dir():
        raise UserError(f"{path} holds neither a sweep (sweep.json) nor a run ({SNAPSHOT}/)")
    config, overrides, facts = read_run(path)
    try:
        result, broken = json.loads((path / RESULT).read_text(encoding="utf-8")), None
    except (OSError, ValueError):
        result, broken = {}, f"its {RESULT} is missing or damaged"
    choices = {name: str(part) for name, part in _hydra_choices(path).items()}
    settings = _settings(choices, overrides, config)
    return Single(path, settings, overrides, choices, facts, result, broken)


def _hydra_choices(path: Path) -> Mapping[str, Any]:
    try:
        node = yaml.load((path / SNAPSHOT / "hydra.yaml").read_text(encoding="utf-8"), Loader)
        choices = node["runtime"]["choices"]
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return {}
    return {key: value for key, value in choices.items() if not key.startswith("hydra/")}


def _row(run: Single, keys: Sequence[str]) -> Row:
    state = State.FINISHED if run.broken is None else State.UNFINISHED
    if run.result.get("interrupted"):
        state = State.INTERRUPTED
    return Row(
        number=0,
        source=0,
        id=run.id,
        overrides=run.overrides,
        choices=run.choices,
        varied=_varied(run, keys),
        state=state,
        reason=run.broken,
        seconds=run.result.get("seconds") if isinstance(run.result.get("seconds"), float) else None,
        result=run.result,
        facts=run.facts,
        path=run.path,
    )


def _varied(run: Single, keys: Sequence[str]) -> dict[str, Any]:
    return {key: run.settings[key] for key in keys if key in run.settings}


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys whose value is not the same everywhere, or that not every run has."""
    names = dict.fromkeys(key for own in settings for key in own)
    missing = object()
    return [key for key in names if len({repr(own.get(key, missing)) for own in settings}) > 1]


def _settings(choices: Mapping[str, str], overrides: Sequence[str], config: Any) -> dict[str, Any]:
    """What a user chose: the parts, and those of their settings that were typed."""
    found: dict[str, Any] = dict(choices)
    for override in overrides:
        key = override.partition("=")[0].lstrip("+")
        value = reduce(
            lambda node, name: node.get(name) if isinstance(node, Mapping) else None, key.split("."), config
        )
        if key not in choices and value is not None and not isinstance(value, Mapping):
            found[key] = value
    return found
