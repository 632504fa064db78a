"""Gated products of 129 to 256 tokens by kernels/cuda/pair.cu, in which two processors read W for each other.

Makes the maps that the kernel reads by, and launches it. Knows no layer.
Legend: T tokens, F outputs of the gate and of up each, K inputs.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from engine.kernel_choices.plans import WIDE_SIDE, Plan
from kernels.cuda.compile import Source
from kernels.cuda.driver import matrix_map
from kernels.cuda.kernel import CudaKernel
from kernels.cuda.wgmma import mma

_THREADS = 256  # that multiply; one of them fetches
_ALIGNED = 1024  # bytes that stages begin at multiples of


def pair(
    plan: Plan, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, *, early: bool = False
) -> None:
    """out [T, F] = silu(x gate^T) * (x up^T), weight [2F, K] being gate and then up, bias [2F] added to both.

    16-bit values, T 129 to 256; rows of x, which may lie apart, and weight begin at multiples of 16 bytes,
    all else is contiguous. With x on the meta device the kernel is compiled and loaded, and not run;
    with weight there too it is compiled alone. early: the first weights are fetched while the kernel in
    front ends (kernels.launch.dependent).
    """
    kernel = _kernel(plan, x.dtype, bias is not None)
    if x.is_meta:
        kernel.build() if weight.is_meta else kernel.prepare()
        return
    tokens, inputs = x.shape
    maps = (matrix_map(matrix, rows, plan.block_k) for matrix, rows in ((x, WIDE_SIDE), (weight, plan.share)))
    given = (weight if bias is None else bias, out, tokens, out.shape[1], plan.steps(inputs))
    kernel(plan.programs(tokens, weight.shape[0]), [*maps, *given], early=early)


@cache
def _kernel(plan: Plan, dtype: torch.dtype, bias: bool) -> CudaKernel:
    bfloat = dtype == torch.bfloat16
    defines = {"BF": int(bfloat), "BIAS": int(bias), "LINES": plan.share, "STAGES": plan.stages}
    source = Source("pair.cu", defines, mma([plan.share], bfloat))
    return CudaKernel(source, "pair", _THREADS, _ALIGNED + plan.shared_bytes(WIDE_SIDE, dtype.itemsize))
