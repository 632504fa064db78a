"""Products x[T, K] @ W[N, K]^T of few tokens, with the norm before and SwiGLU after when the plan says so.

Launches what a plan names. Knows no layer, and no table of plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from engine.kernel_choices.plans import DIRECT, EVEN, HALVES, PAIR, ROWS, WIDE, Plan
from kernels.launch import INTERPRETED, dependent, power_of_two
from kernels.linear_direct import _linear_direct
from kernels.linear_halves import halves
from kernels.linear_pair import pair
from kernels.linear_rows import _linear_rows
from kernels.linear_split import _sum_parts
from kernels.linear_tile import _linear_tile
from kernels.linear_wide import _linear_even, _linear_waves, descriptors

_SUM_BLOCK = 1024
_MOST_SUMS = 64  # registers of a thread of the rows kernel that hold sums, before neighbours share theirs


@dataclass(frozen=True)
class Norm:
    """The root mean square norm of x, or of x + residual: weight [K], residual [T, K] or None."""

    weight: Tensor
    eps: float
    residual: Tensor | None = None


@dataclass(frozen=True)
class Product:
    """One launch's operands: x [T, K], last axis contiguous; weight [N, K] contiguous, of a gated product the
    gate's rows first; bias [N] or None. Of wide plans x, its rows and the weight begin at multiples of 16
    bytes. early: programs fetch their first weights while the kernel in front ends
    (kernels.launch.dependent); those of wide plans do not."""

    plan: Plan
    x: Tensor
    weight: Tensor
    bias: Tensor | None = None
    norm: Norm | None = None
    early: bool = False

    @property
    def blocks(self) -> int:
        """Programs that share the outputs."""
        return -(-self.weight.shape[0] // self.plan.block_n)


@dataclass(frozen=True)
class Sink:
    """Where a launch leaves its results: out, or parts (of splits, or the best of each block), with index."""

    out: Tensor
    total: Tensor
    parts: Tensor
    index: Tensor
    top: int = 0


def product(
    plan: Plan,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    norm: Norm | None = None,
    *,
    early: bool = False,
) -> tuple[Tensor, Tensor]:
    """(y, stream): y = x @ weight^T + bias, [T, N], or [T, N / 2] after SwiGLU where the plan gates.

    Operands as in Product, T within the plan's reach. norm: applied to x first; what it normalises,
    x + residual, is then `stream` (else `stream` is x itself). Nothing is written in place. With
    x on the meta device kernels are compiled and not run.
    """
    run = Product(plan, x, weight, bias, norm, early)
    tokens, outputs = x.shape[0], weight.shape[0]
    out = x.new_empty((tokens, outputs // 2 if plan.gate else outputs), dtype=x.dtype)
    adds = norm is not None and norm.residual is not None
    total = torch.empty_like(x, memory_format=torch.contiguous_format) if adds else x
    splits = plan.split if plan.split > 1 else 0
    parts = x.new_empty((splits, tokens, outputs), dtype=torch.float32)
    launch(run, Sink(out, total, parts, out))
    if plan.split > 1:
        _sum(run, out, parts)
    return out, total


def launch(run: Product, sink: Sink) -> None:
    """The product itself; what its splits or blocks left is a second kernel's business."""
    plan, norm = run.plan, run.norm
    residual = run.x if norm is None or norm.residual is None else norm.residual
    # Pointers that a launch does not have are some other tensor's, which it does not read.
    pointers = (
        run.x, residual, run.weight if norm is None else norm.weight, run.weight,
        run.weight if run.bias is None else run.bias, sink.out, sink.total, sink.parts, sink.index,
    )  # fmt: skip
    numbers = (run.x.stride(0), residual.stride(0), 0.0 if norm is None else norm.eps)
    grid, tokens = (run.blocks, plan.split), run.x.shape[0]
    if plan.kernel == DIRECT:
        _launch_direct(run, sink.out)
    elif plan.kernel == PAIR:
        pair(plan, run.x, run.weight, run.bias, sink.out, early=run.early)
    elif plan.kernel == HALVES:
        halves(plan, run.x, run.weight, run.bias, sink.out)
    elif plan.kernel in WIDE:
        _launch_wide(run, sink.out)
    elif plan.kernel == ROWS:
        start(
            _linear_rows, grid, *pointers, *numbers, T=tokens, **_sizes(run), TOP=sink.top,
            F=_shared_sums(run), num_warps=plan.warps, **dependent(run.early),
        )  # fmt: skip
    else:
        start(
            _linear_tile, grid, *pointers, tokens, *numbers, M=plan.side(tokens), **_sizes(run),
            SWAP=plan.swap, TOP=sink.top, UPCAST=INTERPRETED, num_warps=plan.warps, num_stages=plan.stages,
            **dependent(run.early),
        )  # fmt: skip


def _launch_direct(run: Product, out: Tensor) -> None:
    plan, tokens, k = run.plan, run.x.shape[0], run.weight.shape[1]
    assert not INTERPRETED, "a table for the interpreter holds no such plan"
    start(
        _linear_direct, (plan.programs(tokens, run.weight.shape[0]),), run.x, run.weight,
        run.weight if run.bias is None else run.bias, out, tokens, run.x.stride(0),
        M=plan.side(tokens), N=run.weight.shape[0], K=k, BLOCK_N=plan.block_n, BLOCK_K=plan.block_k,
        WARPS=plan.warps, AHEAD=plan.ahead(k), TURNS=plan.turns,
        HOLD=plan.inputs_held(tokens, k) > 0, GATE=plan.gate, BIAS=run.bias is not None,
        num_warps=plan.warps, **dependent(run.early),
    )  # fmt: skip


def _launch_wide(run: Product, out: Tensor) -> None:
    """Launched plainly: dependently these kernels were slower."""
    plan, tokens, (n, k) = run.plan, run.x.shape[0], run.weight.shape
    lines, side = plan.block_n // 2, plan.side(tokens)
    even = plan.kernel == EVEN
    widths = (lines, lines // 2, lines // 4) if even else (lines,)
    start(
        _linear_even if even else _linear_waves, (plan.programs(tokens, n),),
        *descriptors(run.x, run.weight, out, widths, side, plan.block_k),
        run.weight if run.bias is None else run.bias, -(-tokens // side),
        M=side, N=n, K=k, LINES=lines, BLOCK_K=plan.block_k, BIAS=run.bias is not None, UPCAST=INTERPRETED,
        num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip


def start(kernel: Any, grid: tuple[int, ...], *operands: Any, **constants: Any) -> None:
    """Launch a kernel; with an operand on the meta device it is compiled for such operands and not run."""
    if any(_on_meta(operand) for operand in operands):
        kinds = [operand.dtype if isinstance(operand, Tensor) else operand for operand in operands]
        kernel.warmup(*kinds, grid=grid, **constants)
    else:
        kernel[grid](*operands, **constants)


def _on_meta(operand: Any) -> bool:
    base = operand.base if isinstance(operand, TensorDescriptor) else operand
    return isinstance(base, Tensor) and base.is_meta


def _sum(run: Product, out: Tensor, parts: Tensor) -> None:
    n, plan = run.weight.shape[0], run.plan
    block = min(_SUM_BLOCK, power_of_two(n))
    start(
        _sum_parts, (triton.cdiv(n, block), run.x.shape[0]),
        parts, run.weight if run.bias is None else run.bias, out, run.x.shape[0],
        N=n, BLOCK_N=block, SPLIT=plan.split, GATE=plan.gate, BIAS=run.bias is not None,
        **dependent(run.early),
    )  # fmt: skip


def _shared_sums(run: Product) -> int:
    """How many neighbouring columns of the rows kernel share a sum: one load's worth, 16 bytes, where sums
    of their own would take too many registers."""
    sums = run.x.shape[0] * run.plan.weights_held()
    return 1 if sums <= _MOST_SUMS else min(run.plan.block_k, 16 // run.weight.element_size())


def _sizes(run: Product) -> dict[str, int | bool]:
    plan, norm = run.plan, run.norm
    return {
        "N": run.weight.shape[0],
        "K": run.weight.shape[1],
        "BLOCK_N": plan.block_n,
        "BLOCK_K": plan.block_k,
        "SPLIT": plan.split,
        "NORM": 0 if norm is None else 1 if norm.residual is None else 2,
        "GATE": plan.gate,
        "BIAS": run.bias is not None,
    }
