"""Products x[T, K] @ W[N, K]^T of few tokens, with the norm before and SwiGLU after when the plan says so.

Launches what a plan names. Knows no layer, and no table of plans.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from kernels.launch import INTERPRETED, power_of_two
from kernels.linear_plan import ROWS, Plan
from kernels.linear_rows import _linear_rows
from kernels.linear_split import _sum_parts
from kernels.linear_tile import _linear_tile

_SUM_BLOCK = 1024


@dataclass(frozen=True)
class Norm:
    """The root mean square norm of x, or of x + residual: weight [K], residual [T, K] or None."""

    weight: Tensor
    eps: float
    residual: Tensor | None = None


@dataclass(frozen=True)
class _Product:
    """One launch's operands and sizes."""

    plan: Plan
    x: Tensor
    weight: Tensor
    bias: Tensor | None
    norm: Norm | None

    @property
    def tokens(self) -> int:
        return self.x.shape[0]

    @property
    def outputs(self) -> int:
        return self.weight.shape[0]


def product(
    plan: Plan, x: Tensor, weight: Tensor, bias: Tensor | None = None, norm: Norm | None = None
) -> tuple[Tensor, Tensor]:
    """(y, stream): y = x @ weight^T + bias, [T, N], or [T, N / 2] after SwiGLU where the plan gates.

    x [T, K], last axis contiguous, T within the plan's reach; weight [N, K] contiguous, gate rows first.
    norm: applied to x first; what it normalises, x + residual, is then `stream` (else `stream` is x
    itself). Nothing is written in place.
    """
    gate = plan.gate
    out = x.new_empty((x.shape[0], weight.shape[0] // (2 if gate else 1)))
    adds = norm is not None and norm.residual is not None
    total = torch.empty_like(x, memory_format=torch.contiguous_format) if adds else x
    run = _Product(plan, x, weight, bias, norm)
    parts = _parts(run)
    (_rows if plan.kernel == ROWS else _tile)(run, out, total, parts)
    if plan.split > 1:
        _sum(run, out, parts)
    return out, total


def _parts(run: _Product) -> Tensor:
    """fp32 [split, T, N] for what the splits leave; an empty tensor where there is one."""
    split = run.plan.split if run.plan.split > 1 else 0
    return run.x.new_empty((split, run.tokens, run.outputs), dtype=torch.float32)


def _rows(run: _Product, out: Tensor, total: Tensor, parts: Tensor) -> None:
    plan = run.plan
    _linear_rows[(triton.cdiv(run.outputs, plan.block_n), plan.split)](
        *_operands(run, out, total, parts), run.x.stride(0), _residual(run).stride(0), _eps(run),
        T=run.tokens, **_sizes(run), num_warps=plan.warps, **_dependent(plan),
    )  # fmt: skip


def _tile(run: _Product, out: Tensor, total: Tensor, parts: Tensor) -> None:
    plan = run.plan
    _linear_tile[(triton.cdiv(run.outputs, plan.block_n), plan.split)](
        *_operands(run, out, total, parts), run.tokens, run.x.stride(0), _residual(run).stride(0), _eps(run),
        M=max(16, power_of_two(run.tokens)), **_sizes(run), SWAP=plan.swap, UPCAST=INTERPRETED,
        num_warps=plan.warps, num_stages=plan.stages, **_dependent(plan),
    )  # fmt: skip


def _sum(run: _Product, out: Tensor, parts: Tensor) -> None:
    n, plan = run.outputs, run.plan
    block = min(_SUM_BLOCK, power_of_two(n))
    _sum_parts[(triton.cdiv(n, block), run.tokens)](
        parts, run.weight if run.bias is None else run.bias, out, run.tokens,
        N=n, BLOCK_N=block, SPLIT=plan.split, GATE=plan.gate, BIAS=run.bias is not None,
        PDL=plan.pdl and not INTERPRETED, **_dependent(plan),
    )  # fmt: skip


def _operands(run: _Product, out: Tensor, total: Tensor, parts: Tensor) -> tuple[Tensor, ...]:
    """Pointers; what a launch does not have is some other tensor, which it then does not read."""
    weight = run.weight
    norm = weight if run.norm is None else run.norm.weight
    bias = weight if run.bias is None else run.bias
    return run.x, _residual(run), norm, weight, bias, out, total, parts


def _residual(run: _Product) -> Tensor:
    return run.x if run.norm is None or run.norm.residual is None else run.norm.residual


def _eps(run: _Product) -> float:
    return 0.0 if run.norm is None else run.norm.eps


def _sizes(run: _Product) -> dict[str, int | bool]:
    plan, norm = run.plan, run.norm
    mode = 0 if norm is None else 1 if norm.residual is None else 2
    return {
        "N": run.outputs,
        "K": run.weight.shape[1],
        "BLOCK_N": plan.block_n,
        "BLOCK_K": plan.block_k,
        "SPLIT": plan.split,
        "NORM": mode,
        "GATE": plan.gate,
        "BIAS": run.bias is not None,
        "PDL": plan.pdl and not INTERPRETED,
    }


def _dependent(plan: Plan) -> dict[str, bool]:
    """The launch option of dependent launch, which the interpreter does not know."""
    return {"launch_pdl": True} if plan.pdl and not INTERPRETED else {}
