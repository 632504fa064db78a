"""What a kernel in front of another on a host (front_on_host.h) is told of."""

from __future__ import annotations

import ctypes

from torch import Tensor


class Range(ctypes.Structure):
    """As front_on_host.h has it."""

    _fields_ = (("begin", ctypes.c_void_p), ("bytes", ctypes.c_uint64))

    @classmethod
    def of(cls, x: Tensor) -> Range:
        """From its first value to its last, with what lies between."""
        last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
        return cls(x.data_ptr(), (last + 1) * x.element_size())
