"""Compile streamed attention for Hopper, which need not be here: run as a script, without TRITON_INTERPRET.

Usage: compile_stream.py DTYPE (for example: bf16). Prints one line a variant: bytes of shared memory, matrix
instructions and bulk copies, what it was compiled for.
"""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language
from triton.experimental.gluon._runtime import GluonASTSource

from kernels.attention_stream import _attention_stream
from kernels.attention_tiles import HOPPER, tiles_for

gl: Any = language  # whose names it does not export for type checkers
DTYPES = {"bf16": gl.bfloat16, "fp16": gl.float16}
POINTERS = {"sums_ptr": "*fp32", "stats_ptr": "*fp32", "rows_ptr": "*i64"}


def kind(name: str, dtype: str, pool: str) -> str:
    if name.endswith("_pool"):
        return pool
    if name in ("q_ptr", "out_ptr"):
        return f"*{dtype}"
    return POINTERS.get(name, "*i32" if name.endswith("_ptr") else "fp32" if name == "scale" else "i32")


def compile_one(dtype: str, dim: int, group: int, page: int, rows: int, split: bool) -> None:
    tile = tiles_for(HOPPER, 2, 128).streaming(split)
    assert tile is not None
    part = [min(page, tile.keys), 64]
    layout = gl.NVMMASharedLayout.get_default_for(part, DTYPES[dtype])
    constants = {
        "HEADS": 8 * group, "GROUP": group, "D": dim, "PAGE": page, "BLOCK": tile.keys, "ROWS": rows,
        "STAGES": tile.stages, "SPLIT": split, "PDL": True,
    }  # fmt: skip
    names = list(inspect.signature(_attention_stream.fn).parameters)
    pool = f"tensordesc<{dtype}{part},{layout!r}>"
    signature = {name: "constexpr" if name in constants else kind(name, dtype, pool) for name in names}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in ("q_ptr", "out_ptr", "q_token")}
    source = GluonASTSource(fn=_attention_stream, signature=signature, constexprs=constants, attrs=aligned)
    options = {"num_warps": tile.warps, "launch_pdl": True, **tile.limits()}
    built: Any = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    ptx = built.asm["ptx"]
    assert "griddepcontrol.wait" in ptx
    words = ("mma", len(re.findall(r"wgmma.mma_async", ptx)), "copies", ptx.count("cp.async.bulk.tensor"))
    print("shared", built.metadata.shared, *words, dim, group, page, rows, split)


def main(dtype: str) -> None:
    for dim, group, page, rows, split in (
        (128, 4, 16, 8, False),
        (128, 4, 16, 8, True),
        (64, 3, 16, 8, True),
        (128, 4, 64, 16, False),
    ):
        compile_one(dtype, dim, group, page, rows, split)


if __name__ == "__main__":
    main(sys.argv[1])
