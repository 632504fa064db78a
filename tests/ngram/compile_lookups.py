"""Compile the lookup kernels for a GPU that need not be here: run as a script, without TRITON_INTERPRET.

Usage: compile_lookups.py CAPABILITY. Prints one line a kernel variant.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.ngram_corpus import _ngram_corpus
from kernels.ngram_match import _ngram_continue, _ngram_match
from kernels.ngram_notes import _ngram_streak, _ngram_tree

WIDE = {"rows_ptr", "best_ptr", "common_ptr", "place_ptr", "end_ptr"}


def compile_one(kernel: Any, capability: int, **constants: Any) -> None:
    early = constants["PDL"] = capability >= 90

    def kind(name: str) -> str:
        if name in constants:
            return "constexpr"
        if name in WIDE:
            return "*i64"
        return "*i32" if name.endswith("_ptr") else "i32"

    signature = {name: kind(name) for name in inspect.signature(kernel.fn).parameters}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    options = {"num_warps": 4, "launch_pdl": early}
    triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    print(kernel.fn.__name__, constants)


def main(capability: int) -> None:
    for find in (0, 1, 2):
        for branch in (0, 2):
            compile_one(_ngram_match, capability, FIND=find, BRANCH=branch, K=3, D=7, MIN=1, MAX=8, BLOCK=512)
    compile_one(_ngram_continue, capability, BRANCH=1, K=3, D=7, D_P=8)
    compile_one(_ngram_continue, capability, BRANCH=0, K=1, D=1, D_P=1)
    compile_one(_ngram_corpus, capability, ROUNDS=20, S=16, MIN=1, MAX=8, MAX_P=8)
    compile_one(_ngram_tree, capability, W=5, W_P=8, D=4, SHIFT=8, ROWS=1)
    compile_one(_ngram_tree, capability, W=1, W_P=1, D=1, SHIFT=8, ROWS=1)
    compile_one(_ngram_streak, capability, MOST=255, ROWS=128)
    compile_one(_ngram_corpus, capability, ROUNDS=1, S=16, MIN=1, MAX=1, MAX_P=1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
