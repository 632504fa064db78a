"""Overrides to one plain, resolved, checked config. For the command line, the Python API and tests alike.

Uses Hydra's config loader without its process-wide state, so it works in a notebook, inside another Hydra
program and inside a running task. Knows no part; rules over the chosen parts come after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import hydra.version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import setup_globals
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from engine.build import TARGET, config_problems, parts_of, target_class
from engine.conf_tree import CONF, ROOT_NAME, ConfTree, Option, conf_tree
from engine.config import root_problems
from engine.errors import UserError
from engine.overrides import Checked, check_overrides

HYDRA_VERSION = "1.3"
_NOISE = ("See https://", "full_key:", "object_type", "^", "To append to your config")


@dataclass(frozen=True)
class Resolved:
    """A composed config. cfg: plain dicts, interpolations resolved, no hydra node. choices: group -> option.
    run_dir: where a single run leaves its folder. hydra: Hydra's own node, plain, for the snapshot."""

    cfg: Mapping[str, Any]
    overrides: tuple[str, ...]
    choices: Mapping[str, str]
    run_dir: str = ""
    hydra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Draft:
    """What could be composed of a command line, and everything that is wrong with it."""

    resolved: Resolved
    problems: tuple[str, ...]


def compose(overrides: Sequence[str] = ()) -> Resolved:
    """The config of these overrides. Raises one UserError that lists every unknown name and wrong value."""
    draft = compose_draft(overrides)
    if draft.problems:
        raise UserError("\n".join(draft.problems))
    return draft.resolved


def compose_draft(overrides: Sequence[str] = ()) -> Draft:
    """Compose what can be composed, so that rules may add what they find to `problems`.

    An override that names something unknown is left out of the config and named in `problems`.
    """
    tree = conf_tree()
    checked = _readable(check_overrides(overrides, tree))
    resolved = _resolve(checked)
    problems = (*checked.problems, *_tree_problems(resolved.cfg, resolved.choices, tree, checked))
    return Draft(resolved, problems)


def search_path() -> ConfigSearchPath:
    """Where Hydra looks: its own files and ours, by absolute path."""
    hydra.version.setbase(HYDRA_VERSION)
    setup_globals()
    return create_config_search_path(str(CONF))


def _resolve(checked: Checked) -> Resolved:
    try:
        full = ConfigLoaderImpl(search_path()).load_configuration(
            ROOT_NAME, list(checked.forced), RunMode.RUN
        )
        with _as_current(full):
            node = OmegaConf.to_container(full.hydra, resolve=False, enum_to_str=True)
            run_dir = str(full.hydra.run.dir)
            choices = dict(full.hydra.runtime.choices)
            with open_dict(full):
                del full["hydra"]
            cfg = OmegaConf.to_container(full, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError("\n".join([*checked.problems, readable_error(error)])) from error
    assert isinstance(cfg, dict)
    assert isinstance(node, dict)
    ours = {str(group): str(option) for group, option in choices.items() if not group.startswith("hydra/")}
    return Resolved(_plain(cfg), checked.plain, ours, run_dir, _plain(node))


@contextmanager
def _as_current(full: DictConfig) -> Iterator[None]:
    """Let `${hydra:...}` resolve against this config, then put back whatever program was current."""
    holder = HydraConfig.instance()
    previous = holder.cfg
    holder.set_config(full)
    try:
        yield
    finally:
        holder.cfg = previous


def _plain(node: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in node.items()}


def _readable(checked: Checked) -> Checked:
    """The overrides without those whose value Hydra's grammar cannot read; these become problems."""
    parser = OverridesParser.create()
    problems: list[str] = []
    bad: set[int] = set()
    for at, line in enumerate(checked.forced):
        try:
            parser.parse_override(line)
        except HydraException as error:
            key, _, value = line.removeprefix("++").partition("=")
            problems.append(
                f"{key}={value} cannot be read: {readable_error(error)}; put text in quotes: {key}='\"...\"'"
            )
            bad.add(at)
    plain = tuple(line for at, line in enumerate(checked.plain) if at not in bad)
    forced = tuple(line for at, line in enumerate(checked.forced) if at not in bad)
    return replace(checked, plain=plain, forced=forced, problems=(*checked.problems, *problems))


def readable_error(error: BaseException) -> str:
    """Hydra's message without its pointers to documentation and positions."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(_NOISE)]
    cause = error.__cause__
    if cause is not None and isinstance(cause, OmegaConfBaseException):
        kept = [*kept, readable_error(cause)]
    return " ".join(kept).partition(" To append to your default list")[0] or type(error).__name__


def _tree_problems(
    cfg: Mapping[str, Any], choices: Mapping[str, str], tree: ConfTree, checked: Checked
) -> list[str]:
    """What the root's schema and every part's Config say of the composed tree.

    Groups whose option was not found are left out: their keys were meant for another part.
    """
    scalars = {key: value for key, value in cfg.items() if key not in tree.groups}
    problems = root_problems({key: value for key, value in scalars.items() if key not in checked.doubtful})
    for group in tree.defaults:
        if group not in checked.doubtful:
            option = tree.groups[group][choices[group]]
            problems += _missing_parts(cfg[group], option) or part_problems(cfg[group], group)
    return problems


def _missing_parts(node: Any, option: Option) -> list[str]:
    """Parts that the option nests and that a value has overwritten, as `attention.prefill=null` does."""
    present = parts_of(node) if isinstance(node, Mapping) else {}
    return [
        f"{option.group}.{key} holds a part and takes no value: "
        f"choose one of the group with {inner}@{option.group}.{key}=OPTION"
        for key, inner in option.parts
        if key not in present
    ]


def part_problems(node: Any, where: str) -> list[str]:
    """Problems of one part's node and of the parts nested in it."""
    if not isinstance(node, Mapping) or node.get(TARGET) is None:
        return [f"{where} has no {TARGET}: choose an option of the group"]
    try:
        cls = target_class(node[TARGET])
    except UserError as error:
        return [f"{where}: {error}"]
    nested = [
        problem for key, part in parts_of(node).items() for problem in part_problems(part, f"{where}.{key}")
    ]
    return config_problems(cls, node, where) + nested
