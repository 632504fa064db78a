"""A function with its graphs: one for every shape of its argument, with inputs at fixed addresses.

Knows nothing of what the function computes. The step and the forwards are uses of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from engine.errors import InternalError
from engine.graphs.capture import Captured, Capturer
from engine.graphs.values import key_of, tensors_of, with_tensors

A = TypeVar("A")
R = TypeVar("R")


class StaticBuffers:
    """Memory for inputs or results, shared by all sizes: one buffer for each name and dtype."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def like(self, name: str, tensor: Tensor) -> Tensor:
        """The place for a tensor of this shape. A larger one than before gets new memory; what was handed out
        lives on with whoever holds it."""
        found = self._buffers.get((name, tensor.dtype))
        if found is None or found.numel() < tensor.numel():
            found = torch.zeros(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
            self._buffers[name, tensor.dtype] = found
        return found[: tensor.numel()].view(tensor.shape)


@dataclass(frozen=True)
class Graph(Generic[A, R]):
    """One captured shape of argument. inputs: where the argument's tensors have to lie. fixed: which of them
    never move. result: of the latest replay."""

    captured: Captured
    inputs: tuple[Tensor, ...]
    fixed: tuple[bool, ...]
    result: R

    def on(self, argument: A) -> R:
        """Bring the argument's tensors into place, as far as they lie elsewhere, and replay."""
        given = (tensor for _, tensor in tensors_of(argument))
        for place, tensor, fixed in zip(self.inputs, given, self.fixed, strict=True):
            if place.data_ptr() == tensor.data_ptr():
                continue
            if fixed:
                raise InternalError("an input that was captured where it lay has moved")
            place.copy_(tensor)
        return self.again()

    def again(self) -> R:
        """Replay on what the inputs hold."""
        self.captured.replay()
        return self.result


class GraphedCallable(Generic[A, R]):
    """Replays `function` for arguments that it has been captured for.

    An argument is a frozen dataclass of tensors and plain values (batch sizes are shapes). Values are part of
    the graph, tensors are inputs. Results are read before the next call of any graph of this capturer.
    """

    def __init__(
        self,
        function: Callable[[A], R],
        capturer: Capturer,
        *,
        fixed: Collection[str] = (),
        quiet: Callable[[], AbstractContextManager[object]] = nullcontext,
        shares_results: bool = False,
        phase: str = "step",
    ) -> None:
        """fixed: names of inputs that never move: they are read where they are. quiet: entered for captures;
        inside of it a run of `function` on zeroed inputs must do no harm. shares_results: the results of all
        sizes lie in the same memory, at the price of a copy each. phase: of the capture's cost."""
        self._function = function
        self._capturer = capturer
        self._fixed = tuple(fixed)
        self._quiet = quiet
        self._inputs = StaticBuffers()
        self._results = StaticBuffers()
        self._shares_results = shares_results
        self._phase = phase
        self._graphs: dict[Hashable, Graph[A, R]] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def graph(self, argument: A) -> Graph[A, R] | None:
        """The graph for arguments like this one, if there is one."""
        return self._graphs.get(key_of(argument))

    def capture(self, argument: A) -> Graph[A, R]:
        """Make the graph for arguments like this one; nothing of the argument's own is computed.

        A run outside the graph comes first: it compiles kernels and sizes the workspaces of this stream.
        """
        named = tuple(tensors_of(argument))
        fixed = tuple(self._is_fixed(path) for path, _ in named)
        with self._quiet():
            own = with_tensors(argument, self._placed)
            self._run(own)
            captured, result = self._capturer.capture(lambda: self._run(own), self._phase)
            captured.settle()
        places = tuple(tensor for _, tensor in tensors_of(own))
        graph = self._graphs[key_of(argument)] = Graph(captured, places, fixed, result)
        return graph

    def _is_fixed(self, path: str) -> bool:
        return any(path == name or path.startswith(f"{name}.") for name in self._fixed)

    def _placed(self, path: str, tensor: Tensor) -> Tensor:
        return tensor if self._is_fixed(path) else self._inputs.like(path, tensor).zero_()

    def _run(self, argument: A) -> R:
        result = self._function(argument)
        if not self._shares_results:
            return result
        return with_tensors(result, lambda path, tensor: self._results.like(path, tensor).copy_(tensor))
