# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""A request's coin at a position, as bits: the stream of engine.sampling.rng in a kernel's own arithmetic.

Knows keys and positions. Steele, Lea, Flood 2014, sec. 3 (SplitMix64).
"""

from __future__ import annotations

import triton.language as tl

from engine.sampling.rng import GOLDEN as _GOLDEN
from engine.sampling.rng import MIX_A as _MIX_A
from engine.sampling.rng import MIX_B as _MIX_B
from engine.sampling.rng import RESOLUTION as _RESOLUTION
from kernels.launch import jit

GOLDEN: tl.constexpr = tl.constexpr(_GOLDEN)
MIX_A: tl.constexpr = tl.constexpr(_MIX_A)
MIX_B: tl.constexpr = tl.constexpr(_MIX_B)
DROPPED: tl.constexpr = tl.constexpr(64 - _RESOLUTION)


@jit
def coin_bits(key, position, SALT: tl.constexpr):
    """int64 below 2^RESOLUTION: the coin b of `uniform` is (b + 0.5) / 2^RESOLUTION. key, position: int64.
    SALT: rng.salt of the purpose, as an unsigned number."""
    start = key.to(tl.uint64, bitcast=True) ^ SALT
    z = start + (position + 1).to(tl.uint64, bitcast=True) * GOLDEN
    z = (z ^ (z >> 30)) * MIX_A
    z = (z ^ (z >> 27)) * MIX_B
    return ((z ^ (z >> 31)) >> DROPPED).to(tl.int64, bitcast=True)
