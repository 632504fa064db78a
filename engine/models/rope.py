"""The cos and sin tables of rotary position embedding, with the scalings that checkpoints ask for.

Knows nothing of layers; applying the tables is the work of `ModelOps.rope_store`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from engine.models.scaling import scaling_kind
from engine.models.shape import ModelShape

Scaling = Mapping[str, Any]


def rope_tables(shape: ModelShape, positions: int, device: str) -> tuple[Tensor, Tensor]:
    """(cos, sin), each fp32 [positions, D], the two halves of D equal. Su et al. 2021, sec. 3.4.

    The shape's scaling has passed `check_scaling`.
    """
    inverse, magnitude = inverse_frequencies(shape)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), inverse)
    angles = torch.cat((angles, angles), dim=1)
    return (angles.cos() * magnitude).to(device), (angles.sin() * magnitude).to(device)


def inverse_frequencies(shape: ModelShape) -> tuple[Tensor, float]:
    """(inverse frequencies fp32 [D / 2], factor on cos and sin)."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.int64).float() / shape.head_dim
    plain = 1.0 / (shape.rope_theta**exponents)
    scaling: Scaling = shape.rope_scaling
    return _SCALINGS[scaling_kind(scaling)](plain, scaling, shape)


def _default(plain: Tensor, scaling: Scaling, shape: ModelShape) -> tuple[Tensor, float]:
    return plain, 1.0


def _linear(plain: Tensor, scaling: Scaling, shape: ModelShape) -> tuple[Tensor, float]:
    """Position interpolation: Chen et al. 2023, sec. 3.2."""
    return plain / float(scaling["factor"]), 1.0


def _llama3(plain: Tensor, scaling: Scaling, shape: ModelShape) -> tuple[Tensor, float]:
    """Long wavelengths are stretched, short ones kept, a linear ramp between (Llama 3.1, rope_scaling)."""
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    turns = float(scaling["original_max_position_embeddings"]) * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * kept + plain / float(scaling["factor"]) * (1 - kept), 1.0


def _yarn(plain: Tensor, scaling: Scaling, shape: ModelShape) -> tuple[Tensor, float]:
    """Peng et al. 2023, sec. 3.2 (NTK by parts) and 3.4 (a temperature, as a factor on cos and sin)."""
    factor = float(scaling["factor"])
    original = float(scaling.get("original_max_position_embeddings") or shape.max_positions)
    fast, slow = float(scaling.get("beta_fast") or 32), float(scaling.get("beta_slow") or 1)

    def dimension(turns: float) -> float:
        """The frequency index that makes `turns` turns within the original context."""
        return shape.head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(shape.rope_theta))

    first, last = dimension(fast), dimension(slow)
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, shape.head_dim - 1)
    ramp = (torch.arange(len(plain), dtype=torch.float32) - first) / max(last - first, 0.001)
    kept = 1 - ramp.clamp(0, 1)
    return plain * kept + plain / factor * (1 - kept), _yarn_magnitude(scaling, factor)


def _yarn_magnitude(scaling: Scaling, factor: float) -> float:
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])

    def temperature(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return temperature(float(scaling["mscale"])) / temperature(float(scaling["mscale_all_dim"]))
    return temperature(1.0)


def _factors(plain: Tensor, scaling: Scaling, shape: ModelShape) -> tuple[Tensor, float]:
    """Divisors given one by one, as GGUF files store the Llama 3 scaling."""
    return plain / torch.tensor(scaling["factors"], dtype=torch.float32), 1.0


_SCALINGS: dict[str, Callable[[Tensor, Scaling, ModelShape], tuple[Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "factors": _factors,
}
