"""From plain data to typed values: `_target_` to a class, and a config node to the class's own `Config`.

A leaf of the import graph, free of torch. Knows no part of the engine, only how a part declares itself.
"""

from __future__ import annotations

import dataclasses
import importlib
import types
from collections.abc import Iterable, Mapping
from typing import Any

from engine.errors import UserError
from engine.typed import merge

ALLOWED_PACKAGES = ("engine", "backends", "speculative", "kernels")
TARGET = "_target_"


def number(
    default: Any,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
) -> Any:
    """A dataclass field holding a number within a range; null passes where the type allows it."""
    limits = {"ge": ge, "gt": gt, "le": le, "lt": lt}
    return dataclasses.field(
        default=default, metadata={key: value for key, value in limits.items() if value is not None}
    )


def choice(default: Any, options: Iterable[Any]) -> Any:
    """A dataclass field that holds one of `options`."""
    return dataclasses.field(default=default, metadata={"choices": tuple(options)})


def target_class(path: object) -> type:
    """The class at `package.module.Class`; only classes of our own packages can be named.

    Raises UserError when the path is malformed, foreign, absent, or needs a package that is not installed.
    """
    if not isinstance(path, str) or path.count(".") < 1:
        raise UserError(f"{TARGET}={path!r} is not a class path such as backends.torch_sdpa.TorchAttention")
    module_name, _, class_name = path.rpartition(".")
    if module_name.partition(".")[0] not in ALLOWED_PACKAGES:
        raise UserError(f"{TARGET}={path}: only classes of {', '.join(ALLOWED_PACKAGES)} can be built")
    module = _import(module_name, path)
    found = getattr(module, class_name, None)
    if not isinstance(found, type) or found.__module__.partition(".")[0] not in ALLOWED_PACKAGES:
        raise UserError(f"{TARGET}={path}: {module_name} has no class {class_name}")
    return found


def _import(module_name: str, path: str) -> types.ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(missing + "."):
            raise UserError(f"{TARGET}={path}: there is no module {missing}") from error
        raise UserError(
            f"{TARGET}={path} needs the package {missing}, which is not installed: pip install {missing}"
        ) from error


def parts_of(node: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The nested nodes that are parts of their own (they have a `_target_`), by key."""
    return {
        key: value
        for key, value in node.items()
        if isinstance(value, Mapping) and value.get(TARGET) is not None
    }


def make_config(cls: type, node: Mapping[str, Any], where: str) -> Any:
    """`cls.Config` made of its defaults and the plain node over them; `where` is the node's dotted path.

    The node's `_target_` and its nested parts are left out. Raises one UserError that lists every problem.
    """
    config, problems = merge(_config_type(cls), _options(node), where)
    if problems:
        raise UserError("\n".join(problems))
    return config


def config_problems(cls: type, node: Mapping[str, Any], where: str) -> list[str]:
    """Every problem that `make_config` would raise for, one sentence each."""
    return merge(_config_type(cls), _options(node), where)[1]


def config_keys(cls: type) -> tuple[str, ...]:
    """The option names that a part's Config declares."""
    return tuple(field.name for field in dataclasses.fields(_config_type(cls)))


@dataclasses.dataclass(frozen=True)
class _NoOptions:
    """Stands for the Config of a class that has none."""


def _config_type(cls: type) -> type:
    found = getattr(cls, "Config", _NoOptions)
    return found if isinstance(found, type) else _NoOptions


def _options(node: Mapping[str, Any]) -> dict[str, Any]:
    parts = parts_of(node)
    return {key: value for key, value in node.items() if key != TARGET and key not in parts}
