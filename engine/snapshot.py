"""A saved run's config made runnable again: recomposed for its schema, its saved values laid over.

Recomposing alone would take today's defaults; the saved values alone would skip today's checks (Hydra issues
1805 and 2720). Knows no task; free of torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine import __version__, rules
from engine.build import TARGET
from engine.compose import Resolved, compose, part_problems
from engine.conf_tree import conf_tree
from engine.config import root_problems
from engine.errors import UserError
from engine.overrides import parse
from engine.pins import absolute_paths, pinned
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

    @property
    def origin(self) -> str:
        """The code that the run was made by, for messages."""
        version = self.facts.get("versions", {}).get("syncless", "of an unknown version")
        commit = (self.facts.get("git") or {}).get("commit")
        return f"syncless {version}" + (f" at commit {commit[:12]}" if commit else "")


@dataclass(frozen=True)
class Again:
    """resolved: what the run asked for, with the new overrides on top, as a run folder keeps it. config: the
    same with everything automatic as it came out then; what a task is given. changed: keys that the new
    overrides changed."""

    resolved: Resolved
    config: Mapping[str, Any]
    changed: tuple[str, ...]


def recompose(saved: Snapshot, extra: Sequence[str]) -> Again:
    """The saved run's config with `extra` overrides on top, checked by today's schema and rules.

    Values that no extra override changes are the saved ones. UserError where today's version does not know
    something of the snapshot; it names what, and the code that did.
    """
    before = _known(saved, lambda: compose(_settings(saved.overrides)))
    after = compose(_joined(saved.overrides, extra))
    laid = overlay(saved.config, before.cfg, after.cfg)
    given = [key for key in _given(extra) if _differs(laid, after.cfg, key)]
    changed = tuple(sorted({*changed_keys(before.cfg, after.cfg), *given}))
    config = absolute_paths(_with(laid, after.cfg, given), os.getcwd(), changed)
    resolved = replace(after, cfg=config)
    fixed = pinned(saved.path, saved.facts, config, changed)
    _check(replace(after, cfg=fixed), saved)
    return Again(resolved, fixed, changed)


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


def new_keys(saved: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted names that are in `now` alone; a part that was exchanged has no new ones."""
    found: list[str] = []
    for key, value in now.items():
        if key not in saved:
            found.append(f"{prefix}{key}")
        elif isinstance(value, Mapping) and isinstance(saved[key], Mapping):
            exchanged = TARGET in saved[key] and saved[key][TARGET] != value.get(TARGET)
            found += [] if exchanged else new_keys(saved[key], value, f"{prefix}{key}.")
    return found


def _given(extra: Sequence[str]) -> list[str]:
    """Dotted places of the values and parts that the new overrides name."""
    tree = conf_tree()
    found = (parse(line, tree) for line in extra)
    return [one.package.removeprefix("@") or one.key for one in found if one and not one.is_hydra]


def _differs(laid: Mapping[str, Any], after: Mapping[str, Any], key: str) -> bool:
    """Whether what was named is not what was laid; a part is, when it is of another class."""
    a, b = value_at(laid, key), value_at(after, key)
    return bool(
        a.get(TARGET) != b.get(TARGET) if isinstance(a, Mapping) and isinstance(b, Mapping) else a != b
    )


def value_at(tree: Mapping[str, Any], dotted: str) -> Any:
    """The value at a dotted name; None where there is none."""
    node: Any = tree
    for name in dotted.split("."):
        node = node.get(name) if isinstance(node, Mapping) else None
    return node


def _with(config: Mapping[str, Any], after: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """`config` with the values of `after` at dotted keys: who names a value means it, even where it is
    today's default and was another's then."""
    done = dict(config)
    for key in keys:
        head, _, rest = key.partition(".")
        done[head] = _with(done[head], after[head], [rest]) if rest else after[head]
    return done


def _known(saved: Snapshot, make: Callable[[], Resolved]) -> Resolved:
    """What `make` composes of the saved overrides; what it does not know is put down to the versions."""
    try:
        return make()
    except UserError as error:
        raise UserError(_outdated(saved, str(error).splitlines())) from error


def _outdated(saved: Snapshot, problems: Sequence[str]) -> str:
    """One sentence: what today's version does not know, and which one did."""
    return (
        f"{saved.path} was saved by {saved.origin}, and this version ({__version__}) does not take all of "
        f"its settings: {'; '.join(problems)}. Replay it with that code, or start a new run"
    )


def _settings(overrides: Sequence[str]) -> list[str]:
    """Without those about folders and launchers, which belong to the run that was."""
    tree = conf_tree()
    return [line for line in overrides if (own := parse(line, tree)) is None or not own.is_hydra]


def _joined(saved: Sequence[str], extra: Sequence[str]) -> list[str]:
    """A key may be given once: an extra override takes the place of a saved one of the same key."""
    tree = conf_tree()
    given = {override.key for override in (parse(line, tree) for line in extra) if override}
    kept = [line for line in _settings(saved) if (own := parse(line, tree)) is None or own.key not in given]
    return [*kept, *extra]


def _check(resolved: Resolved, saved: Snapshot) -> None:
    """Schema first: what it does not know is a matter of versions. The rules speak of settings."""
    groups = [group for group in conf_tree().defaults if group in resolved.cfg]
    problems = [problem for group in groups for problem in part_problems(resolved.cfg[group], group)]
    scalars = {key: value for key, value in resolved.cfg.items() if key not in conf_tree().defaults}
    problems += root_problems(scalars)
    if problems:
        raise UserError(_outdated(saved, problems))
    violations = rules.violations(resolved)
    if violations:
        raise UserError("\n".join(violations))
