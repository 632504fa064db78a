"""Compile the product kernels for a GPU that need not be here; usage as compile_for_gpu.py, beside it."""

from __future__ import annotations

import sys

from compile_for_gpu import compile_one
from triton.backends.compiler import GPUTarget

from kernels.linear_best import _pick
from kernels.linear_rows import _linear_rows
from kernels.linear_split import _sum_parts
from kernels.linear_tile import _linear_tile
from kernels.norm_pair import _norm_pair


def main(capability: int, dtype: str) -> None:
    target = GPUTarget("cuda", capability, 32)
    for tokens, n, k, block_n, block_k, split, mode, gate in (
        (1, 4096, 4096, 4, 2048, 1, 0, False),
        (1, 28672, 4096, 4, 2048, 1, 2, True),
        (3, 960, 576, 4, 256, 2, 2, False),
        (4, 576, 1536, 1, 512, 1, 0, False),
        (1, 600_000, 4096, 2, 1024, 1, 1, False),
    ):
        compile_one(
            _linear_rows, dtype, target, 8, T=tokens, N=n, K=k, BLOCK_N=block_n, BLOCK_K=block_k, SPLIT=split,
            NORM=mode, GATE=gate, BIAS=tokens == 3, TOP=0,
        )  # fmt: skip
    block_k = 32 if dtype == "fp32" else 64
    for tile, n, k, split, mode, gate, swap in (
        (16, 4096, 4096, 1, 0, False, False),
        (16, 4096, 14336, 4, 0, False, True),
        (16, 28672, 4096, 1, 2, True, True),
        (32, 3072, 576, 1, 2, True, False),
        (64, 960, 576, 1, 1, False, True),
        (16, 50, 90, 1, 2, False, False),
    ):
        compile_one(
            _linear_tile, dtype, target, 4, M=tile, N=n, K=k, BLOCK_N=64, BLOCK_K=block_k, SPLIT=split,
            NORM=mode, GATE=gate, BIAS=tile == 64, SWAP=swap, TOP=0, UPCAST=False,
        )  # fmt: skip
    for gate in (False, True):
        compile_one(_sum_parts, dtype, target, 4, N=3072, BLOCK_N=1024, SPLIT=3, GATE=gate, BIAS=gate)
    for top, cells in ((1, 512), (4, 2048), (16, 8192)):
        sizes = {"N": 32_000, "K": 4096, "SPLIT": 1, "NORM": 1, "GATE": False, "BIAS": False, "TOP": top}
        compile_one(_linear_rows, dtype, target, 8, T=1, BLOCK_N=16, BLOCK_K=512, **sizes)
        compile_one(
            _linear_tile,
            dtype,
            target,
            4,
            M=16,
            BLOCK_N=64,
            BLOCK_K=block_k,
            SWAP=True,
            UPCAST=False,
            **sizes,
        )
        compile_one(_pick, dtype, target, 8, BLOCKS=500, KEEP=top, CELLS_P=cells, BLOCKS_P=512, TOP=top)
    compile_one(_norm_pair, dtype, target, 4, H=4096, ROWS=1, BLOCK=4096)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
