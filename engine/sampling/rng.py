"""Counter-based random numbers: a function of (key, position, purpose) alone, the same on every device.

Knows nothing of batches: that is why a request's random numbers do not depend on the one it rides in. A leaf
of the import graph: kernels/coins.py computes the same numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

PURPOSE_TOKEN = 0  # the coin that draws a token of the target
PURPOSE_DRAFT = 1  # draws a draft from the drafter's own distribution
PURPOSE_ACCEPT = 2  # decides the ratio test of a sampled draft
PURPOSE_RESIDUAL = 3  # draws the token in place of a sampled draft that was refused
PURPOSE_SIMULATED = 4  # decides between two lengths of a forced run

GOLDEN = 0x9E3779B97F4A7C15
MIX_A = 0xBF58476D1CE4E5B9
MIX_B = 0x94D049BB133111EB
RESOLUTION = 52


def uniform(key: Tensor, position: Tensor, purpose: int = PURPOSE_TOKEN) -> Tensor:
    """float64 [N] in the open interval (0, 1), multiples of 2^-53.

    key: int64 [N]; position: int64 [N] >= 0. The stream of a key is SplitMix64 (Steele, Lea, Flood 2014,
    "Fast splittable pseudorandom number generators", sec. 3) started at the key and read at index
    `position`; a purpose other than 0 starts it elsewhere.
    """
    start = key ^ _signed(salt(purpose))
    z = _mix64(start + (position + 1) * _signed(GOLDEN))
    return (_shift_right(z, 64 - RESOLUTION).double() + 0.5) * 2.0**-RESOLUTION


def salt(purpose: int) -> int:
    """What a key is mixed with for a purpose: 64 bits, unsigned."""
    return (purpose * MIX_A) & ((1 << 64) - 1)


def _mix64(z: Tensor) -> Tensor:
    """SplitMix64's finaliser in wrapping int64 arithmetic."""
    z = (z ^ _shift_right(z, 30)) * _signed(MIX_A)
    z = (z ^ _shift_right(z, 27)) * _signed(MIX_B)
    return z ^ _shift_right(z, 31)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Logical shift: int64's own copies the sign."""
    return torch.bitwise_and(z >> bits, (1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """The int64 with the same low 64 bits."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
