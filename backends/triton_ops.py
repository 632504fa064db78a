"""Token-wise operations as Triton kernels, alone or fused with the products beside them where a plan says so.

Knows nothing of attention. Imports the kernels, so import it only once the way to run Triton is settled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from backends.base import Head, ModelOps
from engine.batch import ForwardBatch, LayerKV
from kernels.linear import Norm, product
from kernels.linear_best import best_outputs
from kernels.linear_plan import BEST, LINEAR, NO_CHOICES, NORM_GATED, NORM_LINEAR, Choices, Plan
from kernels.norm_pair import norm_pair
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope_store import rope_store
from kernels.silu_mul import silu_mul

if TYPE_CHECKING:
    from engine.models.linear import DenseLinear, Linear

Planned = tuple[Plan, "DenseLinear"] | None


class TritonOps(ModelOps):
    """Positions and slots are read in the kernels. choices: plans for products of few tokens; what has none
    is computed by separate operations and the library's product. early: programs of our kernels may start
    while the kernel in front ends."""

    def __init__(self, choices: Choices = NO_CHOICES, *, early: bool = False) -> None:
        self._choices = choices
        self._early = early

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm(x, weight, eps, early=self._early)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return add_rms_norm(x, residual, weight, eps, early=self._early)

    def rope_store(
        self, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, kv: LayerKV, batch: ForwardBatch
    ) -> tuple[Tensor, Tensor]:
        return rope_store(q, k, v, cos, sin, batch.positions, batch.slots, kv.k, kv.v, early=self._early)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return silu_mul(gate_up, early=self._early)

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        planned = self._planned(LINEAR, x, linear)
        return linear(x) if planned is None else self._product(planned, x)

    def norm_linear(
        self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, linear: Linear
    ) -> tuple[Tensor, Tensor]:
        planned = self._planned(NORM_LINEAR, x, linear)
        if planned is None:
            return super().norm_linear(x, residual, weight, eps, linear)
        return self._normed_product(planned, x, Norm(weight, eps, residual))

    def norm_gated(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, linear: Linear
    ) -> tuple[Tensor, Tensor]:
        planned = self._planned(NORM_GATED, x, linear)
        if planned is None:
            return super().norm_gated(x, residual, weight, eps, linear)
        y, stream = self._normed_product(planned, x, Norm(weight, eps, residual))
        return y if planned[0].gate else self.silu_mul(y), stream

    def norm_pair(self, a: Tensor, a_weight: Tensor, b: Tensor, b_weight: Tensor, eps: float) -> Tensor:
        return norm_pair(a, a_weight, b, b_weight, eps, early=self._early)

    def best(self, x: Tensor, weight: Tensor | None, eps: float, head: Head, ids: Tensor) -> Tensor:
        planned = self._planned(BEST, x, head.dense)
        if planned is None:
            return super().best(x, weight, eps, head, ids)
        return self._best(planned, x, weight, eps, ids, 1)[0].squeeze(1)

    def top(
        self, x: Tensor, weight: Tensor | None, eps: float, head: Head, ids: Tensor, k: int
    ) -> tuple[Tensor, Tensor]:
        planned = self._planned(BEST, x, head.dense)
        if planned is None:
            return super().top(x, weight, eps, head, ids, k)
        return self._best(planned, x, weight, eps, ids, k)

    def _planned(self, stage: str, x: Tensor, linear: Linear) -> Planned:
        """The plan of such a product of so many tokens, and its matrix."""
        dense = linear.plain
        if dense is None:
            return None
        dtype = str(x.dtype).removeprefix("torch.")
        plan = self._choices.plan(stage, dtype, x.shape[0], *dense.weight.shape)
        return None if plan is None else (plan, dense)

    def _product(self, planned: tuple[Plan, DenseLinear], x: Tensor) -> Tensor:
        plan, dense = planned
        return product(plan, x, dense.weight, dense.bias, early=self._early)[0]

    def _normed_product(
        self, planned: tuple[Plan, DenseLinear], x: Tensor, norm: Norm
    ) -> tuple[Tensor, Tensor]:
        plan, dense = planned
        if plan.norm:
            return product(plan, x, dense.weight, dense.bias, norm, early=self._early)
        if norm.residual is None:
            return self._product(planned, self.rms_norm(x, norm.weight, norm.eps)), x
        normed, stream = self.add_rms_norm(x, norm.residual, norm.weight, norm.eps)
        return self._product(planned, normed), stream

    def _best(
        self,
        planned: tuple[Plan, DenseLinear],
        x: Tensor,
        weight: Tensor | None,
        eps: float,
        ids: Tensor,
        k: int,
    ) -> tuple[Tensor, Tensor]:
        plan, dense = planned
        norm = None if weight is None else Norm(weight, eps)
        if norm is not None and not plan.norm:
            x, norm = self.rms_norm(x, norm.weight, eps), None
        return best_outputs(plan, x, dense.weight, ids, k, norm, early=self._early)
