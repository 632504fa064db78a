"""Typed merge: plain data over a dataclass; unknown keys, wrong types and values out of range are all named.

A leaf, free of torch and Hydra; knows nothing of parts or of what the values mean.
"""

from __future__ import annotations

import dataclasses
import difflib
import operator
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_RANGES = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "text", types.NoneType: "null"}


def nearest(name: str, options: Iterable[str]) -> str:
    """'; did you mean x?' when one of the options resembles `name`, else ''. Meant to end a clause."""
    found = difflib.get_close_matches(name, list(options), n=1, cutoff=0.5)
    return f"; did you mean {found[0]}?" if found else ""


def merge(target: type, options: Mapping[str, Any], where: str) -> tuple[Any, list[str]]:
    """(target(**options) or None, problems); `where` is the dotted path of `options`, "" for the root.

    Field metadata may hold ge, gt, le, lt (numbers) and choices. A problem is one clause with key and value.
    """
    fields = {field.name: field for field in dataclasses.fields(target) if field.init}
    hints = get_type_hints(target)
    prefix = f"{where}." if where else ""
    problems: list[str] = []
    values: dict[str, Any] = {}
    for key, value in options.items():
        if key not in fields:
            problems.append(_unknown(f"{prefix}{key}", str(key), where, fields))
            continue
        values[key], found = _convert(value, hints[key], f"{prefix}{key}")
        problems += found or _out_of_range(values[key], fields[key].metadata, f"{prefix}{key}")
    problems += [f"{prefix}{name} has to be given" for name, f in fields.items() if _required(f, options)]
    return (None if problems else target(**values)), problems


def _required(field: dataclasses.Field[Any], options: Mapping[str, Any]) -> bool:
    absent = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    return absent and field.name not in options


def _unknown(path: str, key: str, where: str, fields: Mapping[str, Any]) -> str:
    if not fields:
        part = where or "part"
        return f"{path}: the chosen {part} has no options; leave it out, or choose another {part}"
    known = ", ".join(fields)
    return f"{path}: {where or 'the root'} has no option {key}; it has {known}{nearest(key, fields)}"


def _out_of_range(value: Any, metadata: Mapping[str, Any], path: str) -> list[str]:
    if "choices" in metadata and value not in metadata["choices"]:
        options = metadata["choices"]
        shown = ", ".join(_show(option) for option in options)
        guess = nearest(str(value), [str(option) for option in options])
        return [f"{path}={_show(value)} is not one of {shown}{guess}"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return []
    checks = {"ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt}
    broken = [key for key, holds in checks.items() if key in metadata and not holds(value, metadata[key])]
    return [f"{path}={value} has to be {_range_text(metadata)}" for _ in broken[:1]]


def _range_text(metadata: Mapping[str, Any]) -> str:
    return " and ".join(f"{word} {metadata[key]}" for key, word in _RANGES.items() if key in metadata)


def _convert(value: Any, hint: Any, path: str) -> tuple[Any, list[str]]:
    """(value as the type wants it, problems). A whole number is a float too; true is no integer; a list is a
    tuple where one is asked for; nothing else changes its type."""
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return merge(hint if isinstance(hint, type) else type(hint), value, path)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _convert_union(value, get_args(hint), hint, path)
    if origin in (list, tuple, Sequence) or hint in (list, tuple):
        return _convert_items(value, hint, path)
    if origin in (dict, Mapping) or hint in (dict, Mapping):
        return _convert_mapping(value, hint, path)
    if _matches(value, hint):
        return (float(value) if hint is float else value), []
    return None, [f"{path}={_show(value)} has to be {describe(hint)}"]


def _matches(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    if get_origin(hint) is Literal:
        return any(value == option and type(value) is type(option) for option in get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(hint, type) and isinstance(value, hint)


def _convert_union(value: Any, options: tuple[Any, ...], hint: Any, path: str) -> tuple[Any, list[str]]:
    exact = [option for option in options if type(value) is option]
    for option in exact or options:
        converted, problems = _convert(value, option, path)
        if not problems:
            return converted, []
    return None, [f"{path}={_show(value)} has to be {describe(hint)}"]


def _convert_items(value: Any, hint: Any, path: str) -> tuple[Any, list[str]]:
    if not isinstance(value, list | tuple):
        return None, [f"{path}={_show(value)} has to be {describe(hint)}"]
    args = [arg for arg in get_args(hint) if arg is not Ellipsis]
    fixed = get_origin(hint) is tuple and args and Ellipsis not in get_args(hint)
    if fixed and len(value) != len(args):
        return None, [f"{path}={_show(value)} has to be a list of {len(args)}"]
    kinds = args if fixed else (args or [Any]) * len(value)
    done = [
        _convert(item, kind, f"{path}[{i}]") for i, (item, kind) in enumerate(zip(value, kinds, strict=True))
    ]
    items = [item for item, _ in done]
    container = tuple if (get_origin(hint) or hint) is tuple else list
    return container(items), [problem for _, found in done for problem in found]


def _convert_mapping(value: Any, hint: Any, path: str) -> tuple[Any, list[str]]:
    if not isinstance(value, Mapping):
        return None, [f"{path}={_show(value)} has to be {describe(hint)}"]
    key_kind, item_kind = get_args(hint) or (Any, Any)
    problems: list[str] = []
    result: dict[Any, Any] = {}
    for key, item in value.items():
        converted, wrong_key = _convert(key, key_kind, f"{path}: key {key!r}")
        result[converted], wrong_item = _convert(item, item_kind, f"{path}.{key}")
        problems += wrong_key + wrong_item
    return result, problems


def describe(hint: Any) -> str:
    """A type in the words of an error message: "an integer or null", "one of fcfs, lpm"."""
    origin = get_origin(hint)
    if origin is Literal:
        options = get_args(hint)
        shown = ", ".join(_show(option) for option in options)
        return f"one of {shown}" if len(options) > 1 else shown
    if origin in (Union, types.UnionType):
        return " or ".join(describe(option) for option in get_args(hint))
    if origin in (list, tuple, Sequence) or hint in (list, tuple):
        return "a list"
    if origin in (dict, Mapping) or hint in (dict, Mapping) or dataclasses.is_dataclass(hint):
        return "a mapping"
    return _NAMES.get(hint, getattr(hint, "__name__", str(hint)))


def _show(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str) and (
        not value or value.strip() != value or value.lower() in ("null", "true", "false")
    ):
        return repr(value)
    return str(value)
