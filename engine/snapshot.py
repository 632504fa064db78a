"""A saved run's config made runnable again: recomposed for its schema, its saved values laid over.

Recomposing alone would take today's defaults; the saved values alone would skip today's checks (Hydra issues
1805 and 2720). Knows no task; free of torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine import rules
from engine.build import TARGET
from engine.compose import Resolved, compose, part_problems
from engine.conf_tree import conf_tree
from engine.errors import UserError
from engine.overrides import parse
from engine.runs import read_run


@dataclass(frozen=True)
class Snapshot:
    """What a run folder says of its run. facts: run.json."""

    path: Path
    config: Mapping[str, Any]
    overrides: tuple[str, ...]
    facts: Mapping[str, Any]

    @classmethod
    def read(cls, directory: str | os.PathLike[str]) -> Snapshot:
        """UserError for a folder that is not a run's, or whose config was edited afterwards."""
        config, overrides, facts = read_run(directory)
        return cls(Path(directory).resolve(), config, tuple(overrides), facts)


def recompose(saved: Snapshot, extra: Sequence[str]) -> Resolved:
    """The saved run's config with `extra` overrides on top, checked by today's schema and rules.

    Values that no extra override changes are the saved ones; the seed is the one the run used; relative paths
    are taken from the folder the run was started in.
    """
    before = compose(saved.overrides)
    after = compose(_joined(saved.overrides, extra))
    config = overlay(saved.config, before.cfg, after.cfg)
    if "seed" not in changed_keys(before.cfg, after.cfg):
        config["seed"] = saved.facts.get("seed")
    config = _absolute_paths(config, before.cfg, after.cfg, str(saved.facts.get("cwd", os.curdir)))
    resolved = replace(after, cfg=config)
    _check(resolved)
    return resolved


def overlay(saved: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """`saved` where `before` and `after` agree, `after` elsewhere; a part that was exchanged is taken whole.

    Keys that came into being since the run was saved have today's values; keys that are gone stay, so that
    the check can name them.
    """
    result: dict[str, Any] = {key: value for key, value in saved.items() if key not in after}
    for key, new in after.items():
        old, kept = before.get(key), saved.get(key, before.get(key))
        if key not in saved:
            result[key] = new
        elif isinstance(new, Mapping) and isinstance(old, Mapping) and isinstance(kept, Mapping):
            same_part = new.get(TARGET) == old.get(TARGET)
            result[key] = overlay(kept, old, new) if same_part else new
        else:
            result[key] = kept if new == old else new
    return result


def changed_keys(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted names of the values that differ."""
    found: list[str] = []
    for key in sorted({*before, *after}):
        a, b = before.get(key), after.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += changed_keys(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append(f"{prefix}{key}")
    return found


def _joined(saved: Sequence[str], extra: Sequence[str]) -> list[str]:
    """A key may be given once: an extra override takes the place of a saved one of the same key."""
    tree = conf_tree()
    given = {override.key for override in (parse(line, tree) for line in extra) if override}
    kept = [line for line in saved if (own := parse(line, tree)) is None or own.key not in given]
    return [*kept, *extra]


def _absolute_paths(
    config: dict[str, Any], before: Mapping[str, Any], after: Mapping[str, Any], cwd: str
) -> dict[str, Any]:
    """Saved `model.path` and `workload.path` are relative to where the run started, if they exist there."""
    changed = set(changed_keys(before, after))
    for group in ("model", "workload"):
        path = config[group].get("path")
        if path and f"{group}.path" not in changed and os.path.exists(os.path.join(cwd, path)):
            config[group] = {**config[group], "path": os.path.join(cwd, path)}
    return config


def _check(resolved: Resolved) -> None:
    problems = [p for group in conf_tree().defaults for p in part_problems(resolved.cfg[group], group)]
    problems = problems or rules.violations(resolved)
    if problems:
        raise UserError("\n".join(problems))
