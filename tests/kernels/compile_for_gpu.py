"""Compile every kernel for a GPU that need not be here: run as a script, without TRITON_INTERPRET.

Usage: compile_for_gpu.py CAPABILITY DTYPE (for example: 90 bf16). Prints one line a kernel variant.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from engine.sampling.rng import PURPOSE_SIMULATED, salt
from kernels.accept_ratio import _accept_ratio
from kernels.accept_tree import _accept_tree
from kernels.argmax import _best_of, _block_best
from kernels.attention_merge import merge_sizes
from kernels.attention_tile import _attention_tile
from kernels.attention_tiles import tiles_for
from kernels.compact_kv import _compact_kv
from kernels.enter_run import _enter_run
from kernels.gather_rows import _gather_rows
from kernels.keep_last import _keep_last, _path_rows
from kernels.launch import power_of_two
from kernels.node_inputs import _chain_places, _node_inputs, _opening
from kernels.rms_norm import _rms_norm
from kernels.rope_store import _rope_store
from kernels.side_by_side import _side_by_side
from kernels.silence import _silence
from kernels.silu_mul import _silu_mul
from kernels.tree_geometry import _tree_geometry, _tree_paths

INTEGERS = {
    "*u8": "tree mask",
    "*i32": "arrivals table lens start parent tokens target index stop min max "
    "accepted emitted kept finish count paths signal packed table_lens out_len out_token best index "
    "most present behind root",
    "*i64": "rows positions slots window depth address ids key",
}
INTEGER_POINTERS = {f"{name}_ptr": kind for kind, names in INTEGERS.items() for name in names.split()}
FLOAT_POINTERS = {
    "sums_ptr",
    "stats_ptr",
    "value_ptr",
    "part_ptr",
    "cos_ptr",
    "sin_ptr",
    "target_probs_ptr",
    "draft_probs_ptr",
}
COINS = {"coin_ptr", "draw_ptr"}
FLOATS = {"scale", "eps"}


def kind(name: str, dtype: str) -> str:
    if name in INTEGER_POINTERS:
        return INTEGER_POINTERS[name]
    if name in COINS:
        return "*fp64"
    if name.endswith("_ptr"):
        return "*fp32" if name in FLOAT_POINTERS else f"*{dtype}"
    return "fp32" if name in FLOATS else "i32"


def aligned_to_16(name: str) -> bool:
    """As torch allocates: a kernel that is written for such operands is looked at with them."""
    return name.endswith(("_ptr", "_stride"))


SHARED = {90: 227, 80: 99}  # KiB that a block may have; 80 stands for sm_86 too, which has less


def compile_one(
    kernel: Any,
    dtype: str,
    target: GPUTarget,
    warps: int,
    stages: int = 2,
    limits: Mapping[str, int] = MappingProxyType({}),
    **constants: Any,
) -> Any:
    """What Triton built."""
    names = list(inspect.signature(kernel.fn).parameters)
    early = "PDL" in names and target.arch >= 90
    if "PDL" in names:
        constants["PDL"] = early
    signature = {n: "constexpr" if n in constants else kind(n, dtype) for n in names}
    assert not any(n.isupper() and n not in constants for n in names), "a constant is missing"
    form = GluonASTSource if kernel.is_gluon() else ASTSource
    aligned = [i for i, n in enumerate(names) if aligned_to_16(n)] if form is GluonASTSource else []
    attributes = {(i,): [["tt.divisibility", 16]] for i in aligned}
    source = form(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": warps, "num_stages": stages, "launch_pdl": early, **limits}
    built = triton.compile(source, target=target, options=options)
    assert ("griddepcontrol.wait" in built.asm["ptx"]) is early
    shared = built.metadata.shared
    assert shared <= SHARED[target.arch] * 1024, f"{shared} bytes of shared memory: more than a block has"
    print(kernel.fn.__name__, dtype, constants, "shared", shared)
    return built


def most_tiles(dtype: str, target: GPUTarget) -> int:
    """All variants where it matters most; compiling takes seconds each."""
    return 2 if dtype == "fp32" else 7 if target.arch >= 90 else 4


def compile_tiles(dtype: str, target: GPUTarget) -> None:
    """The tiles of decode (a few heads of one token, of few requests and of more; a wide tree; tree drafting)
    and of extend."""
    size = 4 if dtype == "fp32" else 2
    for dim, group, kind_of, split in (
        (128, 4, "chain", True),
        (128, 4, "extend", False),
        (128, 4, "many", False),
        (64, 3, "window", True),
        (80, 8, "tree", True),
        (64, 3, "extend", False),
        (256, 4, "extend", False),
    )[: most_tiles(dtype, target)]:
        tiles = tiles_for(target.arch // 10, size, dim)
        rows = {"chain": group, "many": group, "tree": 5 * group, "window": 8 * group}
        room = 0 if kind_of == "many" else 64
        tile = tiles.extend if kind_of == "extend" else tiles.decoding(rows[kind_of], room=room)
        merged, taken = merge_sizes(min(tile.rows, rows.get(kind_of, tile.rows)), power_of_two(dim), tile)
        compile_one(
            _attention_tile, dtype, target, tile.warps, tile.stages, tile.limits(),
            HEADS=group * 8, GROUP=group, PACK=1, D=dim,
            D_P=power_of_two(dim), PAGE=16, BLOCK_M=tile.rows, BLOCK_N=tile.keys,
            EVEN=kind_of != "extend", TREE=kind_of in ("tree", "window"), WINDOW=kind_of == "window",
            SPLIT=split, MERGED=merged, TAKEN=taken, HELD=tile.held and kind_of != "window", LEAN=False,
            UPCAST=False,
        )  # fmt: skip


def main(capability: int, dtype: str) -> None:
    target = GPUTarget("cuda", capability, 32)
    compile_tiles(dtype, target)
    compile_one(_rms_norm, dtype, target, 4, H=576, ROWS=1, BLOCK=1024, ADD=True)
    compile_one(_rms_norm, dtype, target, 1, H=128, ROWS=1, BLOCK=128, ADD=False)
    compile_one(_silu_mul, dtype, target, 4, F=1536, ROWS=1, BLOCK=1024)
    compile_one(
        _rope_store, dtype, target, 2, HEADS=9, KV_HEADS=3, D=64, ROWS=1, HEADS_P=16, KV_HEADS_P=4, HALF_P=32
    )
    compile_one(_opening, dtype, target, 4, ROWS=128)
    compile_one(_chain_places, dtype, target, 1, STEPS=3, STEPS_P=4, PAGE=16, ROWS=1)
    compile_one(_side_by_side, dtype, target, 4, H=4096, LAST=2, ADD=True, ROWS=1, BLOCK=1024)
    compile_one(_gather_rows, dtype, target, 4, H=4096, ROWS=1, BLOCK=1024)
    compile_one(_keep_last, dtype, target, 4, H=4096, BLOCK=1024, ADD=True)
    compile_one(_path_rows, dtype, target, 4, H=12_288, BLOCK=1024)
    compile_one(_silence, dtype, target, 1, W=5, W_P=8, MOST=64, LONG=1, BEHIND=2, ROWS=1)
    compile_one(_block_best, dtype, target, 4, V=128_256, BLOCK=8192)
    compile_one(_best_of, dtype, target, 1, K=32, K_P=32)
    compile_one(_best_of, dtype, target, 1, K=1, K_P=1)
    for width, side in ((1, 1), (11, 16)):
        run = {"W": width, "W_P": side, "STOPS": 12, "STOPS_P": 16, "ROWS": 1}
        enters = {"SIGNAL": width > 1, "COMMIT": True}
        rule = {"FORCED": width > 1, "LEAST": 1, "CHANCE": 1 << 51, "SALT": salt(PURPOSE_SIMULATED)}
        compile_one(_accept_tree, dtype, target, 1, **run, **enters, **rule)
        compile_one(_enter_run, dtype, target, 1, DRAFTED=width > 1, **run, **enters)
        drafts = {"TREE": width > 1, "LIMIT": width > 1}
        compile_one(_node_inputs, dtype, target, 1, W=width, W_P=side, PAGE=16, ROWS=1, **drafts)
        compile_one(_tree_geometry, dtype, target, 1, W=width, W_P=side, ROWS=1)
        compile_one(_tree_paths, dtype, target, 1, W=width, W_P=side, ROWS=1)
        compile_one(
            _accept_ratio, dtype, target, 8, V=49_152, W=width, W_P=side, BLOCK=4096, BLOCKS=12, BLOCKS_P=16
        )
        compile_one(_compact_kv, dtype, target, 8, W=width, W_P=side, E=192, BLOCK=256)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
