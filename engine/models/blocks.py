"""Unpacks ggml's 4-bit blocks into codes, scales and minima. Knows the bytes of a block, no file.

Layouts after ggml-common.h (block_q4_0, block_q4_1, block_q4_K) of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.models.weights import GROUP, Q4Blocks

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Halves = np.ndarray[Any, np.dtype[np.float32]]
_SUPER = 256  # values of a Q4_K super-block
_SUPER_BYTES = 144


def unpack_q4(data: Bytes, kind: int) -> Q4Blocks:
    """data: uint8 [N, bytes a row] of a Q4_0 (2), Q4_1 (3) or Q4_K (12) matrix."""
    codes, scale, minimum = _UNPACK[kind](data)
    rows = data.shape[0]
    return Q4Blocks(*(_tensor(part, rows) for part in (codes, scale, minimum)))


def _tensor(values: np.ndarray[Any, Any], rows: int) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values.reshape(rows, -1)))


def _half(data: Bytes, start: int) -> Halves:
    """The fp16 at byte `start` of each block, as fp32 [blocks, 1]."""
    return np.ascontiguousarray(data[:, start : start + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """[n, b] -> [n, 2b]: the low halves of all bytes, then the high ones."""
    return np.concatenate((packed & 15, packed >> 4), axis=1)


def _q4_0(data: Bytes) -> tuple[Bytes, Halves, Halves]:
    """fp16 d, 16 bytes of codes; value = d * (code - 8)."""
    blocks = data.reshape(-1, 18)
    scale = _half(blocks, 0)
    return _nibbles(blocks[:, 2:]), scale, -8 * scale


def _q4_1(data: Bytes) -> tuple[Bytes, Halves, Halves]:
    """fp16 d, fp16 m, 16 bytes of codes; value = d * code + m."""
    blocks = data.reshape(-1, 20)
    return _nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)


def _q4_k(data: Bytes) -> tuple[Bytes, Halves, Halves]:
    """fp16 d and dmin, eight 6-bit scales and minima in 12 bytes, 128 bytes of codes.

    value = d * scale * code - dmin * minimum, in eight groups of 32; 32 bytes hold two groups,
    low halves first.
    """
    blocks = data.reshape(-1, _SUPER_BYTES)
    scales, minima = _six_bit(blocks[:, 4:16])
    codes = _nibbles(blocks[:, 16:].reshape(-1, GROUP)).reshape(-1, _SUPER)
    return codes, _half(blocks, 0) * scales, -_half(blocks, 2) * minima


def _six_bit(packed: Bytes) -> tuple[Halves, Halves]:
    """[n, 12] -> (scales, minima), fp32 [n, 8]: four of each in low six bits, the rest in what is left."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate((first & 63, (third & 15) | (first >> 6 << 4)), axis=1)
    minima = np.concatenate((second & 63, (third >> 4) | (second >> 6 << 4)), axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


_UNPACK: dict[int, Callable[[Bytes], tuple[Bytes, Halves, Halves]]] = {2: _q4_0, 3: _q4_1, 12: _q4_k}
