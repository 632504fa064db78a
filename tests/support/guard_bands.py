"""Bands of a known byte around every tensor that is made while they are on: what a kernel writes past an end
shows. Knows nothing of what runs; for the CPU, where Triton's interpreter checks no bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

BAND = 256  # bytes on either side: no tensor loses its alignment
MARK = 0xA5


class Bands:
    """The buffers that were handed out, each with its bands."""

    def __init__(self) -> None:
        self._held: list[tuple[Tensor, int, tuple[int, ...], torch.dtype]] = []

    def place(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor of that shape between two bands; its values are undefined."""
        size = math.prod(shape) * dtype.itemsize
        whole = EMPTY(size + 2 * BAND, dtype=torch.uint8)
        whole[:BAND], whole[BAND + size :] = MARK, MARK
        self._held.append((whole, size, shape, dtype))
        return whole[BAND : BAND + size].view(dtype).view(shape)

    @property
    def count(self) -> int:
        """Tensors that were made."""
        return len(self._held)

    def broken(self) -> list[str]:
        """What was written over, by shape."""
        found = []
        for whole, size, shape, dtype in self._held:
            if not bool((whole[:BAND] == MARK).all() and (whole[BAND + size :] == MARK).all()):
                found.append(f"{dtype} {list(shape)}")
        return found


EMPTY = torch.empty


def _shape(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes


@contextmanager
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bands]:
    """torch.empty and zeros, the same like another tensor, and of a tensor's kind: all between bands."""
    bands = Bands()

    def plain(fill: bool) -> Callable[..., Tensor]:
        def make(*sizes: Any, **options: Any) -> Tensor:
            shape = _shape(options.pop("size", None) or sizes)
            made = bands.place(shape, options.get("dtype") or torch.get_default_dtype())
            return made.zero_() if fill else made

        return make

    def like(fill: bool) -> Callable[..., Tensor]:
        def make(other: Tensor, **options: Any) -> Tensor:
            made = bands.place(tuple(other.shape), options.get("dtype") or other.dtype)
            return made.zero_() if fill else made

        return make

    def new(fill: bool) -> Callable[..., Tensor]:
        def make(other: Tensor, *sizes: Any, **options: Any) -> Tensor:
            made = bands.place(_shape(sizes), options.get("dtype") or other.dtype)
            return made.zero_() if fill else made

        return make

    with monkeypatch.context() as patch:
        for name, fill in (("empty", False), ("zeros", True)):
            patch.setattr(torch, name, plain(fill))
            patch.setattr(torch, f"{name}_like", like(fill))
            patch.setattr(Tensor, f"new_{name}", new(fill))
        yield bands
