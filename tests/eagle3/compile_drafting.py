"""Compile the kernels of draft trees for a GPU that need not be here: run as a script, without
TRITON_INTERPRET.

Usage: compile_drafting.py CAPABILITY. Prints one line a kernel variant.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.draft_tree import _front, _keep_best, _next_level
from kernels.launch import power_of_two, warps_for

KINDS = {
    "*i64": {
        "parent_ptr",
        "survivors_ptr",
        "source_ptr",
        "positions_ptr",
        "slots_ptr",
        "own_slots_ptr",
        "rows_ptr",
    },
    "*fp32": {"scores_ptr", "logprob_ptr", "out_scores_ptr"},
    "*u8": {"seen_ptr", "own_seen_ptr"},
}
WIDE = {_next_level: {"out_parent_ptr"}, _front: set(), _keep_best: set()}


def kind(kernel: Any, name: str) -> str:
    if name in WIDE[kernel]:
        return "*i64"
    for pointer, names in KINDS.items():
        if name in names:
            return pointer
    return "*i32" if name.endswith("_ptr") else "i32"


def compile_one(kernel: Any, capability: int, warps: int, **constants: Any) -> None:
    early = constants["PDL"] = capability >= 90
    names = inspect.signature(kernel.fn).parameters
    signature = {n: "constexpr" if n in constants else kind(kernel, n) for n in names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    options = {"num_warps": warps, "launch_pdl": early}
    triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    print(kernel.fn.__name__, constants)


def main(capability: int) -> None:
    for topk, levels, count in ((2, 3, 5), (16, 4, 31), (1, 2, 1)):
        squared, seen = power_of_two(topk * topk), power_of_two(topk * levels)
        side, size = power_of_two(topk), power_of_two(topk + (levels - 1) * topk * topk)
        compile_one(_next_level, capability, 1, K=topk, ADDED=topk * topk, BLOCK=256)
        for first in (True, False):
            sizes = {"K": topk, "K_P": side, "KK_P": squared, "SEEN_P": seen, "FIRST": first}
            compile_one(_front, capability, warps_for(side * seen), **sizes)
        kept = {"N": count, "N_P": power_of_two(count), "C_P": size}
        compile_one(_keep_best, capability, warps_for(size), **kept)


if __name__ == "__main__":
    main(int(sys.argv[1]))
