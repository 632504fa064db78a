"""What two runs' provenance and settings differ in, by name. Knows run.json and what lies beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.runs import CODE, INSTALLED

WATCHED = (
    "versions",
    "machine",
    "environment",
    "device",
    "device_name",
    "dtype",
    "seed",
    "threads",
    "arithmetic",
    "kv_tokens",
    "max_context",
    "model_files",
    "draft_files",
)
FOLDED = ("code.", "packages.")
MOST_SHOWN = 6

Change = tuple[Any, Any]  # then, now


@dataclass(frozen=True)
class Stack:
    """What a run's outputs come from besides its config. facts: run.json. files: the code's, by their hash.
    packages: every installed one; both empty where an older run kept none."""

    facts: Mapping[str, Any]
    files: Mapping[str, str]
    packages: Mapping[str, str]

    @classmethod
    def of(cls, folder: Path, facts: Mapping[str, Any]) -> Stack:
        """Of a run folder whose run.json holds `facts`."""
        return cls(facts, _files(folder / CODE), _packages(folder / INSTALLED))


def stack_changes(then: Stack, now: Stack) -> dict[str, Change]:
    """Dotted name -> (then, now) of everything that differs. What an older run did not know is no change."""
    found: dict[str, Change] = {}
    for name in WATCHED:
        if name in then.facts and name in now.facts:
            found.update(_differing(name, then.facts[name], now.facts[name]))
    found.update(_package_changes(then, now))
    return {**found, **code_changes(then, now)}


def code_changes(then: Stack, now: Stack) -> dict[str, Change]:
    """Whether the code differs: by its hash where both runs know theirs, so that a wheel equals the checkout
    that it was built from; else by the commit."""
    a, b = (stack.facts.get("code") for stack in (then, now))
    if a is not None and b is not None:
        if a == b:
            return {}
        found: dict[str, Change] = {"code": (_code_of(then), _code_of(now))}
        files = differing_keys(then.files, now.files) if then.files and now.files else []
        return {**found, **{f"code.{name}": (then.files.get(name), now.files.get(name)) for name in files}}
    return dict(_differing("git", then.facts.get("git"), now.facts.get("git")))


def shown(changes: Mapping[str, Change]) -> list[str]:
    """One line each; the code's files, and packages that the engine does not name itself, on one line each
    kind."""
    lines = [f"{name}: {a} -> {b}" for name, (a, b) in changes.items() if not name.startswith(FOLDED)]
    for kind, title in zip(FOLDED, ("code files", "other packages"), strict=True):
        names = [name.removeprefix(kind) for name in changes if name.startswith(kind)]
        more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
        lines += [f"{title}: {', '.join(names[:MOST_SHOWN])}{more}"] if names else []
    return lines


def _differing(name: str, a: Any, b: Any) -> dict[str, Change]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return {f"{name}.{key}": (a.get(key), b.get(key)) for key in differing_keys(a, b)}
    return {} if a == b else {name: (a, b)}


def differing_keys(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Keys whose values differ; names of files hold dots, so they are never taken apart."""
    return [key for key in sorted({*a, *b}) if a.get(key) != b.get(key)]


def _package_changes(then: Stack, now: Stack) -> dict[str, Change]:
    """Packages beside those that `versions` names."""
    if not then.packages or not now.packages:
        return {}
    named = {name for stack in (then, now) for name in stack.facts.get("versions", {})}
    keys = (key for key in differing_keys(then.packages, now.packages) if key not in named)
    return {f"packages.{key}": (then.packages.get(key), now.packages.get(key)) for key in keys}


def _code_of(stack: Stack) -> str:
    """Version and commit, for a person."""
    git = stack.facts.get("git")
    version = stack.facts.get("versions", {}).get("syncless")
    if git is None:
        return f"{version}, installed"
    return f"{version}, commit {git['commit'][:12]}" + (" with changes" if git["dirty"] else "")


def _files(file: Path) -> Mapping[str, str]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _packages(file: Path) -> Mapping[str, str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {name: version for name, _, version in (line.partition("==") for line in lines)}
