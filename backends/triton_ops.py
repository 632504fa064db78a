"""Token-wise operations as Triton kernels, alone or fused with the products beside them where a plan says so.

Knows nothing of attention. Imports the kernels, so import it only once the way to run Triton is settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from backends.model_ops import Head, ModelOps
from backends.triton_products import Products
from engine.batch import ForwardBatch, LayerKV
from engine.kernel_choices.plans import BEST, LINEAR, NO_CHOICES, NORM_GATED, NORM_LINEAR, Choices
from kernels.gather_rows import gather_rows
from kernels.linear import Norm
from kernels.norm_pair import norm_pair
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope_store import rope_store
from kernels.side_by_side import PARTS, side_by_side
from kernels.silu_mul import silu_mul

if TYPE_CHECKING:
    from engine.models.linear import Linear


class TritonOps(ModelOps):
    """Positions and slots are read in the kernels. choices: plans for products of few tokens; what has none
    is computed by separate operations and the library's product. early: programs of our kernels may start
    while the kernel in front ends."""

    def __init__(self, choices: Choices = NO_CHOICES, *, early: bool = False) -> None:
        self._products = Products(choices, early)
        self.early = self._early = early

    def rows(self, table: Tensor, index: Tensor) -> Tensor:
        return gather_rows(table, index, early=self._early)

    def beside(self, parts: Sequence[Tensor], added: Tensor | None = None) -> Tensor:
        tokens, size = parts[0].shape
        made = parts[0].new_empty((tokens, len(parts) * size))
        for begin in range(0, len(parts), PARTS):
            group = list(parts[begin : begin + PARTS])
            more = added if begin + PARTS >= len(parts) else None
            side_by_side(group, more, made[:, begin * size :], early=self._early)
        return made

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
        found = self._products.site(LINEAR, x, linear)
        return linear(x) if found is None else self._products.run(*found, x)[0]

    def scores(self, x: Tensor, linear: Linear) -> Tensor:
        return self.linear(x, linear)

    def norm_linear(
        self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, linear: Linear
    ) -> tuple[Tensor, Tensor]:
        found = self._products.site(NORM_LINEAR, x, linear, Norm(weight, eps, residual))
        if found is None:
            return super().norm_linear(x, residual, weight, eps, linear)
        return self._products.run(*found, x)

    def norm_gated(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, linear: Linear
    ) -> tuple[Tensor, Tensor]:
        found = self._products.site(NORM_GATED, x, linear, Norm(weight, eps, residual))
        if found is None:
            return super().norm_gated(x, residual, weight, eps, linear)
        y, stream = self._products.run(*found, x)
        return y if found[0].gate else self.silu_mul(y), stream

    def norm_pair(
        self, table: Tensor, index: Tensor, a_weight: Tensor, b: Tensor, b_weight: Tensor, eps: float
    ) -> Tensor:
        return norm_pair(table, a_weight, b, b_weight, eps, index, early=self._early)

    def best(
        self, x: Tensor, weight: Tensor | None, eps: float, head: Head, ids: Tensor, out: Tensor | None = None
    ) -> Tensor:
        found = self._products.site(BEST, x, head.dense, _norm(weight, eps))
        if found is None:
            return super().best(x, weight, eps, head, ids, out)
        return self._products.best(*found, x, ids, out)

    def top(
        self, x: Tensor, weight: Tensor | None, eps: float, head: Head, ids: Tensor, k: int
    ) -> tuple[Tensor, Tensor]:
        found = self._products.site(BEST, x, head.dense, _norm(weight, eps))
        if found is None:
            return super().top(x, weight, eps, head, ids, k)
        return self._products.top(*found, x, ids, k)


def _norm(weight: Tensor | None, eps: float) -> Norm | None:
    return None if weight is None else Norm(weight, eps)
