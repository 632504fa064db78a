"""Token-wise operations as Triton kernels: one launch each.

Knows nothing of attention. Imports the kernels, so import it only once the way to run Triton is settled.
"""

from __future__ import annotations

from torch import Tensor

from backends.base import ModelOps
from engine.batch import ForwardBatch, LayerKV
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope_store import rope_store
from kernels.silu_mul import silu_mul


class TritonOps(ModelOps):
    """Positions and slots are read in the kernels. early: their programs may start while the kernel in front
    ends."""

    def __init__(self, *, early: bool = False) -> None:
        self._early = early

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return add_rms_norm(x, residual, weight, eps)

    def rope_store(
        self, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, kv: LayerKV, batch: ForwardBatch
    ) -> tuple[Tensor, Tensor]:
        return rope_store(q, k, v, cos, sin, batch.positions, batch.slots, kv.k, kv.v, early=self._early)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return silu_mul(gate_up)
