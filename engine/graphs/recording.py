"""A graph on the CPU: torch operations and interpreted Triton launches of a piece of work, to be run again.

What a CUDA graph forbids fails here too: reading a value on the host, and making tensors of host data. What
Python computed from host values is part of the recording, as it is in a CUDA graph.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten

from engine.errors import InternalError

T = TypeVar("T")
Operation = Callable[[], None]

# Operations whose result, or its shape, the host has to know.
_READS = frozenset(
    f"aten::{name}"
    for name in (
        "_local_scalar_dense", "item", "is_nonzero", "equal", "allclose", "nonzero", "nonzero_numpy",
        "argwhere", "masked_select", "bincount", "histc", "_unique", "_unique2", "unique_dim",
        "unique_consecutive", "unique_dim_consecutive",
    )
)  # fmt: skip
_INDEXES = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
_PUTS = ("aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
_FROM_HOST = ("aten::lift_fresh", "aten::lift_fresh_copy")
_ALLOCATES = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty")
_METHODS = ("tolist", "numpy", "cpu", "__array__", "__dlpack__", "pin_memory")  # that no operation shows


@dataclass
class Recording:
    """Operations in order, and what each is called ("aten::add", a kernel's name); the tensors that they read
    and write live as long as it does."""

    operations: list[Operation] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def note(self, name: str, operation: Operation) -> None:
        self.names.append(name)
        self.operations.append(operation)

    def replay(self) -> None:
        with torch.inference_mode():
            for operation in self.operations:
                operation()


def record(work: Callable[[], T]) -> tuple[Recording, T]:
    """Run `work`, and what it did as a recording. InternalError where a CUDA graph would not have it."""
    recording = Recording()
    with _interpreted_launches(recording), _HostMethods(), _Recorder(recording):
        return recording, work()


class _HostMethods(TorchFunctionMode):
    """Refuses what would bring a tensor to the host without an operation that could be noted."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _METHODS:
            raise InternalError(f"Tensor.{name} reads a device value on the host inside a graph")
        return func(*args, **(kwargs or {}))


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation that computes something; views of recorded memory need no second run."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording = recording
        self._numbers: dict[int, Tensor] = {}  # Python's, by address; kept, so that none is given twice

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        name = func._schema.name
        if name in _READS or _counts_on_host(func, name, args, named):
            raise InternalError(f"{name} reads a device value on the host inside a graph")
        if name in _FROM_HOST:
            self._note_number(args[0])
        if name in _PUTS and args[2].data_ptr() in self._numbers:
            raise InternalError("a number is put at indices inside a graph: CUDA copies it there, and waits")
        result = func(*args, **named)
        made = [value for value in tree_flatten(result)[0] if isinstance(value, Tensor)]
        if _writes(func):
            self._recording.note(name, lambda: func(*args, **named))
        elif name not in _ALLOCATES and not _views(made, (args, named)):
            self._recording.note(name, lambda: _again(func, args, named, made))
        return result

    def _note_number(self, made: Tensor) -> None:
        """A number that Python made a tensor of travels with most operations."""
        if made.dim():
            raise InternalError("a tensor is made of host data inside a graph")
        self._numbers[made.data_ptr()] = made


def _counts_on_host(func: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether the shape of a result depends on values: a mask as an index, counts without their sum."""
    if name in _INDEXES:
        return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    if name == "aten::where":
        return len(args) == 1
    if name == "aten::repeat_interleave" and func._overloadname != "self_int":
        return named.get("output_size") is None
    return False


def _again(func: Any, args: Sequence[Any], named: Mapping[str, Any], made: Sequence[Tensor]) -> None:
    fresh = [value for value in tree_flatten(func(*args, **named))[0] if isinstance(value, Tensor)]
    for target, value in zip(made, fresh, strict=True):
        target.copy_(value)


def _writes(func: Any) -> bool:
    """Whether the operation changes one of its arguments."""
    return any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)


def _views(made: Sequence[Tensor], arguments: Any) -> bool:
    """Whether all that it made lies in memory of its arguments."""
    given = {t.untyped_storage().data_ptr() for t in tree_flatten(arguments)[0] if _has_storage(t)}
    return all(t.untyped_storage().data_ptr() in given for t in made if t.numel())


def _has_storage(value: object) -> bool:
    """Packed weights of oneDNN are tensors without one."""
    return isinstance(value, Tensor) and not value.is_mkldnn


@contextmanager
def _interpreted_launches(recording: Recording) -> Iterator[None]:
    """Launches of Triton's interpreter pass torch by: they are noted whole."""
    interpreter = sys.modules.get("triton.runtime.interpreter")
    if interpreter is None:  # nothing was interpreted so far, and importing it would settle how Triton runs
        yield
        return
    executor_class = interpreter.GridExecutor
    plain = executor_class.__call__

    def launch(executor: Any, *args: Any, **kwargs: Any) -> None:
        with _disable_current_modes():
            plain(executor, *args, **kwargs)
        recording.note(executor.fn.__name__, lambda: plain(executor, *args, **kwargs))

    executor_class.__call__ = launch
    try:
        yield
    finally:
        executor_class.__call__ = plain
