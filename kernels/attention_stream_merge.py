# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# mypy: disable-error-code="attr-defined, name-defined, assignment, call-arg, arg-type"
# ruff: noqa: N803, RUF005
"""What the splits of a streamed pass leave, and how the one that ends last merges them: parts and counters as
those of attention_merge, summed in the same order, of strips that have a query row a column.

Knows no keys. Dao et al. 2023, "Flash-Decoding".
"""

from __future__ import annotations

from triton.experimental.gluon import language as gl

from kernels.launch import gluon_barrier, gluon_jit


@gluon_jit
def leave_strips(acc, top, weight, cell, real, d, sums_ptr, stats_ptr, arrival, used, D: gl.constexpr):
    """Store a split's unnormalised strips [64, ROWS], its largest scores and the weights below them [ROWS];
    true in the last of `used` programs that do so. cell, real [ROWS]: where, and whether a row is one; d
    [64, 1]. The counter is zero again then, for the next launch."""
    mine = real[None, :] & (d < 64)
    for strip in gl.static_range(D // 64):
        gl.store(sums_ptr + cell[None, :] * D + strip * 64 + d, acc[strip], mask=mine)
    gl.store(stats_ptr + cell * 2, top, mask=real)
    gl.store(stats_ptr + cell * 2 + 1, weight, mask=real)
    gluon_barrier()  # one thread counts for all: what the others stored has to be visible before
    last = gl.atomic_add(arrival, 1, sem="acq_rel") == used - 1
    gl.store(arrival, 0, mask=last)
    return last


@gluon_jit
def merged_strips(acc, cell, real, d, sums_ptr, stats_ptr, used, D: gl.constexpr):
    """(strips [64, ROWS], weights [ROWS]) of all `used` parts from `cell` on, in their order. acc: strips, of
    which nothing but the form counts. Past the first-level cache, as attention_merge."""
    mine = real[None, :] & (d < 64)
    top = gl.load(stats_ptr + cell * 2, mask=real, other=-1e30, cache_modifier=".cg")
    for part in range(1, used):
        height = gl.load(stats_ptr + (cell + part) * 2, mask=real, other=-1e30, cache_modifier=".cg")
        top = gl.maximum(top, height)
    weight = top * 0.0
    merged = ()
    for strip in gl.static_range(D // 64):
        merged = merged + (gl.zeros_like(acc[strip]),)
    for part in range(used):
        stats = stats_ptr + (cell + part) * 2
        share = gl.exp2(gl.load(stats, mask=real, other=-1e30, cache_modifier=".cg") - top)
        weight += share * gl.load(stats + 1, mask=real, other=0.0, cache_modifier=".cg")
        sums = sums_ptr + (cell + part)[None, :] * D + d
        later = ()
        for strip in gl.static_range(D // 64):
            own = gl.load(sums + strip * 64, mask=mine, other=0.0, cache_modifier=".cg")
            later = later + (merged[strip] + share[None, :] * own,)
        merged = later
    return merged, weight
