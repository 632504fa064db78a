"""Products of few tokens by plan: the norm before and SwiGLU after are fused where the plan says so.

Asks a table which plan to use and compiles what it met for all numbers of tokens at once. Knows no attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.errors import UserError
from engine.kernel_choices.plans import BEST, Choices, Plan
from kernels.launch import INTERPRETED
from kernels.linear import Norm, product
from kernels.linear_best import best_output, best_outputs
from kernels.rms_norm import add_rms_norm, rms_norm

if TYPE_CHECKING:
    from engine.models.linear import DenseLinear, Linear


@dataclass(frozen=True)
class Site:
    """A product of a layer: its matrix, and the norm in front of it. stage: one of plans.STAGES."""

    stage: str
    dense: DenseLinear
    norm: Norm | None = None

    def kind(self, dtype: torch.dtype) -> tuple[object, ...]:
        """What its compiled kernels depend on, besides plan and tokens."""
        added = None if self.norm is None else self.norm.residual is not None
        return (self.stage, self.dense.weight.shape, self.dense.bias is not None, added, dtype)


class Products:
    """What TritonOps asks for products. early: see kernels.launch.dependent."""

    def __init__(self, choices: Choices, early: bool) -> None:
        self._choices = choices
        self._early = early
        self._compiled: set[tuple[object, ...]] = set()

    def site(
        self, stage: str, x: Tensor, linear: Linear, norm: Norm | None = None
    ) -> tuple[Plan, Site] | None:
        """The plan for `linear` on x [T, K]; None where there is none, even if there is one for other T."""
        dense = linear.plain
        if dense is None:
            return None
        site = Site(stage, dense, norm)
        plan = self._choices.plan(stage, _name(x.dtype), x.shape[0], *dense.weight.shape)
        if plan is None and stage != BEST:
            self._compile_product(site, x)
        return None if plan is None else (plan, site)

    def run(self, plan: Plan, site: Site, x: Tensor) -> tuple[Tensor, Tensor]:
        """(y, stream) as from kernels.linear.product."""
        self._compile_product(site, x)
        x, stream, norm = self._normed(plan, site, x)
        y, total = self._product(plan, site, x, norm)
        return y, total if plan.norm else stream

    def best(self, plan: Plan, site: Site, x: Tensor, ids: Tensor, out: Tensor | None) -> Tensor:
        """As from kernels.linear_best.best_output."""

        def pick(plan: Plan, x: Tensor, norm: Norm | None) -> Tensor:
            return best_output(plan, x, site.dense.weight, ids, norm, out, early=self._early)

        self._compile(site, x, pick)
        x, _, norm = self._normed(plan, site, x)
        return pick(plan, x, norm)

    def top(self, plan: Plan, site: Site, x: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """As from kernels.linear_best.best_outputs."""

        def pick(plan: Plan, x: Tensor, norm: Norm | None) -> tuple[Tensor, Tensor]:
            return best_outputs(plan, x, site.dense.weight, ids, k, norm, early=self._early)

        self._compile(site, x, pick, k)
        x, _, norm = self._normed(plan, site, x)
        return pick(plan, x, norm)

    def _product(self, plan: Plan, site: Site, x: Tensor, norm: Norm | None) -> tuple[Tensor, Tensor]:
        return product(plan, x, site.dense.weight, site.dense.bias, norm, early=self._early)

    def _normed(self, plan: Plan, site: Site, x: Tensor) -> tuple[Tensor, Tensor, Norm | None]:
        """(x, stream, norm): what goes into the product, the residual stream, the norm still to be done."""
        norm = site.norm
        if norm is None or plan.norm:
            return x, x, norm
        if norm.residual is None:
            return rms_norm(x, norm.weight, norm.eps, early=self._early), x, None
        normed, stream = add_rms_norm(x, norm.residual, norm.weight, norm.eps, early=self._early)
        return normed, stream, None

    def _compile_product(self, site: Site, x: Tensor) -> None:
        self._compile(site, x, lambda plan, x, norm: self._product(plan, site, x, norm))

    def _compile(
        self, site: Site, x: Tensor, run: Callable[[Plan, Tensor, Norm | None], object], k: int = 0
    ) -> None:
        """Compile a product for every number of tokens that has a plan, when it is first met: that is while
        the engine starts, and later steps of other sizes find all they need."""
        kind = (*site.kind(x.dtype), k)
        if INTERPRETED or kind in self._compiled:
            return
        self._compiled.add(kind)
        outputs, inputs = site.dense.weight.shape
        for tokens, plan in self._choices.compiled(site.stage, _name(x.dtype), outputs, inputs).items():
            shape = torch.empty((tokens, inputs), dtype=x.dtype, device="meta")
            norm = site.norm if plan.norm else None
            if norm is not None and norm.residual is not None:
                norm = replace(norm, residual=shape)
            try:
                run(plan, shape, norm)
            except Exception as error:  # Triton's compiler has no common one
                product = f"{site.stage} {_name(x.dtype)}, {tokens} tokens, {outputs} x {inputs}"
                raise UserError(_refused(product, plan, error)) from error


def _refused(product: str, plan: Plan, error: Exception) -> str:
    said = f"{type(error).__name__}: {error}".splitlines()[0]
    return (
        f"the table of kernel choices holds a plan for {product}, which cannot be compiled here ({plan}: "
        f"{said:.200}); measure another with `python -m benchmarks.tune_kernels`, or choose kernels=torch"
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
