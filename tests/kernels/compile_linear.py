"""Compile the product kernels for a GPU that need not be here; usage as compile_for_gpu.py, beside it.

bf16 gets every variant, other dtypes every other one: compiling takes a second each.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

from compile_for_gpu import compile_one
from triton.backends.compiler import GPUTarget

from kernels.linear_best import _pick
from kernels.linear_direct import _linear_direct
from kernels.linear_rows import _linear_rows
from kernels.linear_split import _sum_parts
from kernels.linear_tile import _linear_tile
from kernels.norm_pair import _norm_pair

Variant = tuple[Any, int, dict[str, Any]]  # kernel, warps, constants


def rows() -> Iterator[Variant]:
    for tokens, n, k, block_n, block_k, split, mode, gate, top in (
        (1, 4096, 4096, 4, 2048, 1, 0, False, 0),
        (1, 28672, 4096, 4, 2048, 1, 2, True, 0),
        (3, 960, 576, 4, 256, 2, 2, False, 0),
        (1, 32000, 4096, 16, 512, 1, 1, False, 4),
        (1, 600_000, 4096, 2, 1024, 1, 1, False, 0),
        (5, 28672, 4096, 4, 2048, 1, 0, True, 0),
        (8, 4096, 4096, 4, 2048, 1, 2, False, 0),
    ):
        shared = 1 if tokens < 5 else 8
        sizes = {
            "T": tokens,
            "N": n,
            "K": k,
            "BLOCK_N": block_n,
            "BLOCK_K": block_k,
            "SPLIT": split,
            "F": shared,
        }
        yield _linear_rows, 8, {**sizes, "NORM": mode, "GATE": gate, "BIAS": tokens == 3, "TOP": top}


def tiles(block_k: int) -> Iterator[Variant]:
    for tile, n, k, split, mode, gate, swap, top in (
        (16, 4096, 4096, 1, 0, False, False, 0),
        (16, 4096, 14336, 4, 0, False, True, 0),
        (16, 28672, 4096, 1, 2, True, True, 0),
        (64, 960, 576, 1, 1, False, True, 0),
        (32, 3072, 576, 1, 2, True, False, 0),
        (16, 32000, 4096, 1, 1, False, True, 16),
        (16, 50, 90, 1, 2, False, False, 0),
    ):
        sizes = {"M": tile, "N": n, "K": k, "BLOCK_N": 64, "BLOCK_K": block_k, "SPLIT": split, "SWAP": swap}
        yield _linear_tile, 4, {
            **sizes, "NORM": mode, "GATE": gate, "BIAS": tile == 64, "TOP": top, "UPCAST": False,
        }  # fmt: skip


def direct() -> Iterator[Variant]:
    for warps, columns, n, k, block_n, ahead, turns, hold, gate in (
        (4, 8, 4096, 4096, 8, 4, 1, False, False),
        (4, 8, 4096, 14336, 16, 4, 1, False, False),
        (2, 8, 28672, 4096, 32, 2, 2, False, True),
        (8, 8, 6144, 4096, 8, 2, 3, True, False),
        (1, 8, 958, 576, 8, 4, 2, False, False),
        (2, 16, 2880, 576, 16, 3, 1, False, True),
        (2, 8, 600_000, 4096, 8, 2, 1, False, False),
    ):
        sizes = {"M": columns, "N": n, "K": k, "BLOCK_N": block_n, "BLOCK_K": 128 * warps, "WARPS": warps}
        yield _linear_direct, warps, {
            **sizes, "AHEAD": ahead, "TURNS": turns, "HOLD": hold, "GATE": gate, "BIAS": n in (958, 2880),
        }  # fmt: skip


def others() -> Iterator[Variant]:
    for gate in (False, True):
        yield _sum_parts, 4, {"N": 3072, "BLOCK_N": 1024, "SPLIT": 3, "GATE": gate, "BIAS": gate}
    # The last: a head of 152,000 in blocks of 16, whose 16 best each would take minutes side by side.
    for top, blocks, cells, turns in ((1, 500, 512, False), (16, 500, 8192, False), (16, 9500, 16384, True)):
        sizes = {"BLOCKS": blocks, "KEEP": top, "CELLS_P": cells, "BLOCKS_P": max(512, cells * turns)}
        yield _pick, 16 if turns else 8, {**sizes, "TOP": top, "TURNS": turns, "LOGS": top > 1}
    yield _norm_pair, 4, {"H": 4096, "ROWS": 1, "BLOCK": 4096, "LOOKUP": True}


def straight_to_registers(ptx: str, constants: dict[str, Any]) -> None:
    """Operands are read 16 bytes at a time and multiplied as they are."""
    if not constants["BIAS"]:  # which is read value by value
        assert not re.search(r"ld\.global\S*\.b(8|16)\b", ptx), "a narrow load"
    found = {name for name in (".v4.b32", "m16n8k16", "ldmatrix", "cp.async") if name in ptx}
    assert found == {".v4.b32", "m16n8k16"}, "operands go through shared memory"


def main(capability: int, dtype: str) -> None:
    target = GPUTarget("cuda", capability, 32)
    short = [] if dtype == "fp32" else [*direct()]
    variants = [*short, *rows(), *tiles(32 if dtype == "fp32" else 64), *others()]
    for kernel, warps, constants in variants[:: 1 if dtype == "bf16" else 2]:
        built = compile_one(kernel, dtype, target, warps, **constants)
        if kernel is _linear_direct:
            straight_to_registers(built.asm["ptx"], constants)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
