"""Compile plans for many tokens on the meta device, then for tensors that there are: run as a script, without
TRITON_INTERPRET and without a GPU. Prints how many kernels each of the two has built, and another plan then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from engine.compiled import COMPILED
from engine.kernel_choices.plans import Plan
from kernels import linear

N, K = 2064, 136


@dataclass(frozen=True)
class Hopper:
    """What Triton asks of a GPU's driver before it launches anything."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only(kernel: Any, grid: tuple[int, ...], *operands: Any, **constants: Any) -> None:
    """In place of linear.start: as it launches, but for the launch."""
    kernel.run(*operands, grid=grid, warmup=True, **constants)


def built(device: str, counts: Iterable[int], stages: int = 3) -> int:
    """Kernels that are built for both plans, with and without a bias."""
    before = COMPILED.total
    weight = torch.zeros(N, K, dtype=torch.bfloat16)
    for kernel, bias, tokens in product(("waves", "even"), (None, weight[:, 0].contiguous()), counts):
        x = torch.empty(tokens, K, dtype=torch.bfloat16, device=device)
        linear.product(Plan(kernel, 256, 64, 8, stages, gate=True), x, weight, bias)
    return COMPILED.total - before


def main() -> None:
    driver.set_active(Hopper())
    print("meta", built("meta", (96, 128, 192, 256)))
    linear.start = compile_only
    print("real", built("cpu", (65, 66, 96, 112, 128, 129, 200, 256)))
    print("other", built("cpu", (65, 256), stages=2))


if __name__ == "__main__":
    main()
