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
def merged_strips(acc, cell, real, d, sums_ptr, stats_ptr, used, D: gl.constexpr, TAKEN: gl.constexpr):
    """(strips [64, ROWS], weights [ROWS]) of all `used` parts from `cell` on, in their order, TAKEN of which
    are read at once. acc: strips, of which nothing but the form counts. Past the first-level cache, as
    attention_merge."""
    merged = ()
    for strip in gl.static_range(D // 64):
        merged = merged + (gl.zeros_like(acc[strip]),)
    top = gl.where(real, -1e30, -1e30)
    weight = gl.where(real, 0.0, 0.0)
    for at in range(0, used, TAKEN):
        heights = ()
        weights = ()
        parts = ()
        for i in gl.static_range(TAKEN):
            there = real & (at + i < used)
            stats = stats_ptr + (cell + at + i) * 2
            sums = sums_ptr + (cell + at + i)[None, :] * D + d
            heights = heights + (gl.load(stats, mask=there, other=-1e30, cache_modifier=".cg"),)
            weights = weights + (gl.load(stats + 1, mask=there, other=0.0, cache_modifier=".cg"),)
            mine = there[None, :] & (d < 64)
            for strip in gl.static_range(D // 64):
                parts = parts + (gl.load(sums + strip * 64, mask=mine, other=0.0, cache_modifier=".cg"),)
        new_top = top
        for i in gl.static_range(TAKEN):
            new_top = gl.maximum(new_top, heights[i])
        shrink = gl.exp2(top - new_top)
        top = new_top
        weight = weight * shrink
        for i in gl.static_range(TAKEN):
            weight += gl.exp2(heights[i] - top) * weights[i]
        later = ()
        for strip in gl.static_range(D // 64):
            strip_sum = merged[strip] * shrink[None, :]
            for i in gl.static_range(TAKEN):
                strip_sum += gl.exp2(heights[i] - top)[None, :] * parts[i * (D // 64) + strip]
            later = later + (strip_sum,)
        merged = later
    return merged, weight
