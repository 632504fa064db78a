"""Pinned host memory that is used again and again, so that no step allocates any.

Knows bytes and who holds them; who may read what they hold, and when, is for the holder to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_ALIGN = 64
_LEAST = 4096


@dataclass(frozen=True)
class Lease:
    """Host tensors in one pinned buffer."""

    buffer: Tensor
    tensors: tuple[Tensor, ...]


class PinnedRing:
    """Buffers go out as leases and come back when their holder has read them. One that never comes back is
    freed with its lease."""

    def __init__(self, *, pinned: bool = True) -> None:
        """pinned: False for tests without a GPU."""
        self._pinned = pinned
        self._free: list[Tensor] = []

    def lease(self, like: Sequence[Tensor]) -> Lease:
        """Host tensors of these shapes and dtypes; what they hold is left over from earlier."""
        starts, end = [], 0
        for tensor in like:
            starts.append(end)
            end += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
        buffer = self._take(end)
        places = zip(like, starts, strict=True)
        return Lease(buffer, tuple(_within(buffer, start, tensor) for tensor, start in places))

    def give_back(self, lease: Lease) -> None:
        """The holder has read it, and nothing on the device writes to it any more."""
        self._free.append(lease.buffer)

    def _take(self, size: int) -> Tensor:
        for at, buffer in enumerate(self._free):
            if buffer.numel() >= size:
                return self._free.pop(at)
        rounded = max(_LEAST, 1 << max(size - 1, 0).bit_length())
        return torch.empty(rounded, dtype=torch.uint8, pin_memory=self._pinned)


def _within(buffer: Tensor, start: int, like: Tensor) -> Tensor:
    size = like.numel() * like.element_size()
    return buffer[start : start + size].view(like.dtype).view(like.shape)
