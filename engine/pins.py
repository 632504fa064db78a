"""What a saved run found out by itself, put into its config: a replay must not find out something else.

Knows run.json and the files of a run folder; composes nothing and is free of torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.build import TARGET, target_class
from engine.devices import count_gpus
from engine.kernel_choices.source import AUTO, LIBRARY
from engine.runs import QUESTIONS, WORKLOAD
from engine.step_costs import CACHED, MEASURE, STEP_COSTS
from engine.workloads.single import STDIN

FILE_WORKLOAD = "engine.workloads.file.FileWorkload"
PATHS = ("path", "draft", "corpus", "examples", "against", "resume")  # last parts of keys that name files
SIZED_BY = ("model", "spec", "cache", "scheduler", "device")  # settings that the pool's size depends on
TYPED_BY = ("model", "attention", "device")  # settings that the weights' dtype depends on

Node = Mapping[str, Any]


def pinned(folder: Path, facts: Node, config: Node, changed: Sequence[str]) -> dict[str, Any]:
    """The config with seed, device, threads, dtype, pool size, files, prompts and measured tables as they
    were, as far as they were automatic and none of the `changed` keys decides on them."""
    fixed = absolute_paths(config, str(facts.get("cwd", os.curdir)), _paths_unchanged(config, changed))
    if "seed" not in changed:
        fixed["seed"] = facts.get("seed", fixed["seed"])
    if "threads" not in changed and fixed["threads"] is None:
        fixed["threads"] = facts.get("threads")
    fixed["device"] = _device(fixed["device"], facts.get("device"), changed)
    _pin_dtype(fixed, facts, changed)
    if not _roots(changed, SIZED_BY):
        fixed["cache"] = {**fixed["cache"], **_sizes(fixed["cache"], facts)}
    if not _roots(changed, ("prompt", "workload")):
        fixed = _with_saved_prompts(fixed, folder / WORKLOAD)
    if not _roots(changed, ("eval",)) and (folder / QUESTIONS).is_file():
        own = {"path": str(folder / QUESTIONS), "limit": None, "seed": None}
        fixed["eval"] = {**fixed["eval"], **own}
    return {**fixed, **_tables(folder, facts, fixed, changed)}


def absolute_paths(config: Node, folder: str, keys: Sequence[str]) -> dict[str, Any]:
    """The config whose values at `keys` name the files that they name from `folder`, where such exist."""
    return _walk(config, folder, frozenset(keys), "")


def is_path(key: str) -> bool:
    """Whether a dotted key holds files or folders."""
    return key.rpartition(".")[2] in PATHS or key in ("step_costs", "kernels")


def _walk(node: Node, folder: str, keys: frozenset[str], prefix: str) -> dict[str, Any]:
    done: dict[str, Any] = {}
    for name, value in node.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            done[name] = _walk(value, folder, keys, f"{key}.")
        else:
            done[name] = _absolute(value, folder) if key in keys and is_path(key) else value
    return done


def _absolute(value: Any, folder: str) -> Any:
    if isinstance(value, list | tuple):
        return [_absolute(one, folder) for one in value]
    if not isinstance(value, str) or not value or value in (CACHED, MEASURE, AUTO, LIBRARY):
        return value
    place = os.path.join(folder, os.path.expanduser(value))
    return os.path.normpath(place) if os.path.exists(place) else value


def _paths_unchanged(config: Node, changed: Sequence[str]) -> list[str]:
    return [key for key in _keys(config, "") if key not in changed]


def _keys(node: Node, prefix: str) -> Iterator[str]:
    for name, value in node.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _device(asked: str, found: Any, changed: Sequence[str]) -> str:
    """The device of the run where this machine has such a one."""
    if asked != "auto" or "device" in changed or not isinstance(found, str):
        return asked
    return found if found == "cpu" or count_gpus() else asked


def _pin_dtype(fixed: dict[str, Any], facts: Node, changed: Sequence[str]) -> None:
    kind = str(facts.get("device")).partition(":")[0]
    automatic = fixed["model"].get("dtype") == "auto" and not _roots(changed, TYPED_BY)
    if automatic and facts.get("dtype") and fixed["device"].partition(":")[0] == kind:
        fixed["model"] = {**fixed["model"], "dtype": facts["dtype"]}


def _sizes(cache: Node, facts: Node) -> dict[str, int]:
    """Sizes that were automatic: on a GPU they follow from the memory that was free."""
    found = {"tokens": facts.get("kv_tokens"), "max_context": facts.get("max_context")}
    return {key: size for key, size in found.items() if cache.get(key) == "auto" and size is not None}


def _roots(changed: Sequence[str], roots: Sequence[str]) -> bool:
    return any(key.partition(".")[0] in roots for key in changed)


def _with_saved_prompts(config: dict[str, Any], lines: Path) -> dict[str, Any]:
    """The prompts from the run folder: standard input is gone, and a file may have changed since.

    Not where the prompt is in the config itself, or the prompts are made from numbers (a workload that is
    not representative).
    """
    typed = config["prompt"] not in (None, STDIN)
    made = not getattr(target_class(config["workload"][TARGET]), "representative", True)
    if typed or made or not lines.is_file():
        return config
    workload = {TARGET: FILE_WORKLOAD, "path": str(lines), "limit": None}
    return {**config, "workload": workload, "prompt": None}


def _tables(folder: Path, facts: Node, config: Node, changed: Sequence[str]) -> dict[str, str]:
    """Root settings that name a file of what was measured then."""
    named = facts.get("measured", {"step_costs": STEP_COSTS})  # older runs name none
    return {
        name: str(folder / file)
        for name, file in named.items()
        if name in config and name not in changed and (folder / file).is_file()
    }
