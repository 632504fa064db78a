"""Compile the products of 65 to 256 tokens for Hopper, at the sizes of an 8B; usage: compile_wide.py DTYPE.

Prints one line a variant; fails where one spills registers, or takes more shared memory than its plan says.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.kernel_choices.limits import MOST_SHARED
from engine.kernel_choices.plans import EVEN, WAVES, Plan
from kernels.linear_wide import _linear_even, _linear_waves

KERNELS = {WAVES: _linear_waves, EVEN: _linear_even}
TOOL = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
BESIDE = 1024  # bytes: barriers, and a block of the bias on its way to other threads
N, K = 28672, 4096


def signature(kernel: Any, dtype: str, plan: Plan, constants: dict[str, Any]) -> dict[str, str]:
    """Descriptors by name: of x, and of W and out, in whole, half and quarter blocks."""
    side, step = plan.side(256), plan.block_k
    blocks = {"x": [side, step]}
    for suffix, part in (("", 1), ("_half", 2), ("_quarter", 4)):
        lines = plan.block_n // 2 // part
        blocks |= {f"w{suffix}": [2, lines, step], f"out{suffix}": [side, lines]}
    kinds = {name: f"tensordesc<{dtype}{block}>" for name, block in blocks.items()}
    kinds |= {"bias_ptr": f"*{dtype}", "blocks": "i32"} | dict.fromkeys(constants, "constexpr")
    return {name: kinds[name] for name in inspect.signature(kernel.fn).parameters}


def compile_one(plan: Plan, dtype: str, bias: bool) -> Any:
    """What Triton built, for one that needs no more than there is."""
    kernel = KERNELS[plan.kernel]
    constants = {
        "M": plan.side(256), "N": N, "K": K, "LINES": plan.block_n // 2, "BLOCK_K": plan.block_k,
        "BIAS": bias, "UPCAST": False,
    }  # fmt: skip
    source = ASTSource(kernel, signature(kernel, dtype, plan, constants), constants)
    options = {"num_warps": plan.warps, "num_stages": plan.stages}
    compiler: Any = triton.compile
    built = compiler(source, target=GPUTarget("cuda", 90, 32), options=options)
    shared = built.metadata.shared
    assert shared <= min(MOST_SHARED, plan.shared_bytes(256, 2) + BESIDE), shared
    registers, stack = usage(built.asm["cubin"])
    assert stack == 0, f"{stack} bytes of registers are spilled"
    ptx = built.asm["ptx"]
    assert "wgmma" in ptx, "not on the units of whole tiles"
    assert "cp.async.bulk.tensor" in ptx, "not by descriptor"
    assert "griddepcontrol" not in ptx
    print(plan.kernel, dtype, "bias" if bias else "", plan.stages, "shared", shared, "registers", registers)
    return built


def usage(cubin: bytes) -> tuple[int, int]:
    """(registers of a thread, bytes of its stack)."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run(
            [str(TOOL), "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    registers, stack = (re.search(rf"{name}:(\d+)", said) for name in ("REG", "STACK"))
    assert registers
    assert stack
    return int(registers[1]), int(stack[1])


def main(dtype: str) -> None:
    for kernel in KERNELS:
        for stages in (3, 4):
            compile_one(Plan(kernel, 256, 64, 8, stages, gate=True), dtype, bias=False)
        compile_one(Plan(kernel, 256, 64, 8, 4, gate=True), dtype, bias=True)


if __name__ == "__main__":
    main(sys.argv[1])
