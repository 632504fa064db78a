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
from engine.build import TARGET, target_class
from engine.compose import Resolved, compose, part_problems
from engine.conf_tree import conf_tree
from engine.errors import UserError
from engine.overrides import parse
from engine.runs import WORKLOAD, read_run
from engine.step_costs import STEP_COSTS
from engine.workloads.single import STDIN

FILE_WORKLOAD = "engine.workloads.file.FileWorkload"


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

    Values that no extra override changes are the saved ones; the seed is the one the run used; the prompts
    and the step costs are those that the folder holds.
    """
    before = compose(saved.overrides)
    after = compose(_joined(saved.overrides, extra))
    changed = changed_keys(before.cfg, after.cfg)
    config = overlay(saved.config, before.cfg, after.cfg)
    if "seed" not in changed:
        config["seed"] = saved.facts.get("seed")
    if "model.path" not in changed:
        config["model"] = _absolute_path(config["model"], str(saved.facts.get("cwd", os.curdir)))
    if not any(key.partition(".")[0] in ("prompt", "workload") for key in changed):
        config = _with_saved_prompts(config, saved.path / WORKLOAD)
    if "step_costs" not in changed and (saved.path / STEP_COSTS).is_file():
        config["step_costs"] = str(saved.path / STEP_COSTS)
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


def _absolute_path(model: Mapping[str, Any], cwd: str) -> dict[str, Any]:
    """A relative `model.path` means the folder the run was started in, if it exists there."""
    path = os.path.join(cwd, model.get("path") or "")
    return {**model, "path": path} if model.get("path") and os.path.exists(path) else dict(model)


def _with_saved_prompts(config: dict[str, Any], lines: Path) -> dict[str, Any]:
    """The prompts from the run folder: standard input is gone, and a file may have changed since.

    Not where the prompt is in the config itself, or the prompts are made from numbers (a workload that is
    not representative).
    """
    typed = config["prompt"] not in (None, STDIN)
    made = not getattr(target_class(config["workload"]["_target_"]), "representative", True)
    if typed or made or not lines.is_file():
        return config
    workload = {TARGET: FILE_WORKLOAD, "path": str(lines), "limit": None}
    return {**config, "workload": workload, "prompt": None}


def _check(resolved: Resolved) -> None:
    problems = [p for group in conf_tree().defaults for p in part_problems(resolved.cfg[group], group)]
    problems = problems or rules.violations(resolved)
    if problems:
        raise UserError("\n".join(problems))
