# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# mypy: disable-error-code=assignment
# ruff: noqa: N803, N806
"""Requests of weights to the L2 cache, before a product may read its inputs: the memory works meanwhile.

Knows rows of a weight and how much of them is asked for, not what they are multiplied with.
"""

from __future__ import annotations

import triton.language as tl
from triton.language.extra.cuda import num_threads

from kernels.launch import jit

ALIGNED = 16  # bytes: what addresses and sizes of requests are multiples of
_LINE = 128  # bytes of a line of the cache
_MOST = tl.constexpr(1024)  # bytes of a request


def span(budget: int, rows: int, columns: int, size: int) -> int:
    """Columns of each of `rows` rows that `budget` bytes pay for, in whole lines of the cache, `columns` at
    most. size: bytes of an element."""
    line = _LINE // size
    return min(budget // (rows * size) // line * line, columns)


@jit
def ask_ahead(w_ptr, row, first, K: tl.constexpr, SKIP: tl.constexpr, SPAN: tl.constexpr):
    """Ask for columns first + SKIP to first + SPAN, below K, of these rows [BLOCK_N]; nothing is waited for.
    Rows start at multiples of ALIGNED bytes. Compute capability 9 and up.

    Every thread has requests of its own: values that are fewer than threads would be computed by several.
    """
    SIZE: tl.constexpr = w_ptr.dtype.element_ty.primitive_bitwidth // 8
    LINE: tl.constexpr = 128 // SIZE
    THREADS: tl.constexpr = num_threads()
    LINES: tl.constexpr = row.shape[0]
    SIDE: tl.constexpr = THREADS // LINES if LINES < THREADS else 1  # requests of a row at a time
    SHARE: tl.constexpr = (SPAN - SKIP + SIDE * LINE - 1) // (SIDE * LINE) * LINE
    PIECE: tl.constexpr = SHARE if SHARE * SIZE < _MOST else _MOST // SIZE  # columns of a request
    for at in tl.static_range(SKIP, SPAN, SIDE * PIECE):  # what is read first is asked for first
        column = first + at + tl.arange(0, SIDE) * PIECE
        count = tl.minimum(tl.minimum(first + SPAN, K) - column, PIECE) * SIZE
        address = (w_ptr + row[:, None] * K + column[None, :]).to(tl.int64)
        _request(address, tl.broadcast_to(count[None, :], address.shape))


@jit
def _request(address, count):
    """count: bytes; of none or fewer nothing is asked."""
    tl.inline_asm_elementwise(
        "{ .reg .pred asks; setp.gt.s32 asks, $2, 0; "
        "@asks cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0; }",
        "=r,l,r", [address, count], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
