"""Values made of tensors and plain data, taken apart and put together again: what a graph's arguments are.

Knows frozen dataclasses, tuples, dicts and tensors; everything else counts as a whole and has to be hashable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")


def tensors_of(value: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """(dotted path, tensor) of every tensor in it, in a fixed order."""
    if isinstance(value, Tensor):
        yield path, value
    else:
        for name, child in _children(value):
            yield from tensors_of(child, f"{path}.{name}" if path else name)


def key_of(value: object) -> Hashable:
    """Everything that is not a tensor, and the shapes and dtypes of what is."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    children = _children(value)
    if not children and not isinstance(value, dict):
        return type(value), value
    return type(value), tuple((name, key_of(child)) for name, child in children)


def with_tensors(value: T, replace: Callable[[str, Tensor], Tensor], path: str = "") -> T:
    """The same value with `replace(path, tensor)` in the place of every tensor."""
    if isinstance(value, Tensor):
        changed: Any = replace(path, value)
        return changed  # type: ignore[no-any-return]
    children = _children(value)
    if not children:
        return value
    made = {
        name: with_tensors(child, replace, f"{path}.{name}" if path else name) for name, child in children
    }
    return _rebuilt(value, made)


def _children(value: object) -> list[tuple[str, object]]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, tuple) and any(isinstance(child, Tensor | tuple) for child in value):
        return [(str(index), child) for index, child in enumerate(value)]
    if isinstance(value, dict):
        return [(str(name), child) for name, child in value.items()]
    return []


def _rebuilt(value: T, made: dict[str, Any]) -> T:
    kind: Any = type(value)
    if isinstance(value, tuple):
        return kind(made.values())  # type: ignore[no-any-return]
    return kind(**made) if dataclasses.is_dataclass(value) else kind(made)  # type: ignore[no-any-return]
