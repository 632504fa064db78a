# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# mypy: disable-error-code="attr-defined, name-defined, assignment, call-arg, arg-type"
# ruff: noqa: N803, N806, SIM108
"""Products of few tokens on matrix units, with weights that go from memory straight into their registers.

The order of a product's columns is free as long as weights and x share it, so that what a thread reads, 16
bytes of a row, are operands as they lie: nothing goes through shared memory. Knows no layer.

The units want four threads on a row, which would read 64 bytes of it at a time; memory likes 128. So a row
takes two neighbouring rows of a tile: the first of such a pair holds columns 0 to 31 of 64, the second the
others. Both are multiplied with x of either half, and of each product every other row counts.
Legend: T tokens, M columns of tokens in a tile (at least 8), N outputs, K inputs, warps share K.
"""

from __future__ import annotations

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from kernels.launch import gluon_enter, gluon_jit


@gluon_jit
def _rows(first, line, OUT: gl.constexpr, K: gl.constexpr, PART: gl.constexpr, WIDE: gl.constexpr):
    """(offsets, whether they are real) of a block's lines. PART: 1 for the gate's partners in up."""
    row = first + line
    real = row < OUT
    row = gl.where(real, row, 0) + PART * OUT
    if WIDE:
        row = row.to(gl.int64)
    return row * K, real


@gluon_jit
def _weights(at, real, k, step, K: gl.constexpr, BLOCK_K: gl.constexpr, MASKED: gl.constexpr):
    """The weights of one step. at: addresses of the first one; real: lines that there are; k: columns.
    MASKED: whether some lines may not be."""
    whole: gl.constexpr = (step + 1) * BLOCK_K <= K
    if whole and not MASKED:
        w = gl.load(at + step * BLOCK_K, eviction_policy="evict_first")
    else:
        inside = real & (k < K - step * BLOCK_K)
        w = gl.load(at + step * BLOCK_K, mask=inside, other=0.0, eviction_policy="evict_first")
    return w


@gluon_jit
def _inputs(at, k, step, K: gl.constexpr, BLOCK_K: gl.constexpr):
    """x of one step: of the columns 0 to 31 of each 64, and of the others."""
    if (step + 1) * BLOCK_K <= K:
        halves = (gl.load(at + step * BLOCK_K), gl.load(at + step * BLOCK_K + 32))
    else:
        rest = K - step * BLOCK_K
        halves = (
            gl.load(at + step * BLOCK_K, mask=k < rest, other=0.0),
            gl.load(at + step * BLOCK_K + 32, mask=k + 32 < rest, other=0.0),
        )
    return halves


@gluon_jit
def _first_weights(
    at, real, k, K: gl.constexpr, BLOCK_K: gl.constexpr, AHEAD: gl.constexpr, MASKED: gl.constexpr
):
    """The weights of the first AHEAD steps, on their way."""
    ws = ()
    for step in gl.static_range(AHEAD):
        ws = ws + (_weights(at, real, k, step, K, BLOCK_K, MASKED),)  # noqa: RUF005
    return ws


@gluon_jit
def _first_inputs(at, k, K: gl.constexpr, BLOCK_K: gl.constexpr, AHEAD: gl.constexpr):
    xs = ()
    for step in gl.static_range(AHEAD):
        xs = xs + (_inputs(at, k, step, K, BLOCK_K),)  # noqa: RUF005
    return xs


@gluon_jit
def _following(
    ws, now, now_real, later, later_real, k, step,
    K: gl.constexpr, BLOCK_K: gl.constexpr, STEPS: gl.constexpr, AHEAD: gl.constexpr, MORE: gl.constexpr,
    MASKED: gl.constexpr, MASKED_LATER: gl.constexpr,
):  # fmt: skip
    """ws without its first step, which is used up, and with the one AHEAD of it: of this block (addresses
    `now`), or of the program's next one (`later`) if there is MORE."""
    ws = ws[1:]
    if step + AHEAD < STEPS:
        ws = ws + (_weights(now, now_real, k, step + AHEAD, K, BLOCK_K, MASKED),)  # noqa: RUF005
    elif MORE:
        ws = ws + (_weights(later, later_real, k, step + AHEAD - STEPS, K, BLOCK_K, MASKED_LATER),)  # noqa: RUF005
    return ws


@gluon_jit
def _total(both, sums: gl.constexpr, flat: gl.constexpr):
    """[lines, M] of two sums [WARPS, 2 lines, M]: of the first one the even rows count, of the second the
    odd ones."""
    row = gl.arange(0, both[0].shape[1], layout=gl.SliceLayout(0, gl.SliceLayout(2, sums)))[None, :, None]
    y = gl.sum(gl.where(row % 2 == 0, both[0], both[1]), axis=0)
    y = gl.sum(gl.reshape(y, [y.shape[0] // 2, 2, y.shape[1]]), axis=1)
    return gl.convert_layout(y, flat)


@gluon_jit
def _store(
    acc, acc_up, bias_ptr, out_ptr, tokens, first,
    M: gl.constexpr, OUT: gl.constexpr, LINES: gl.constexpr, GATE: gl.constexpr, BIAS: gl.constexpr,
    sums: gl.constexpr,
):  # fmt: skip
    """Add up a block's sums; bias, SwiGLU and rounding as in linear_parts.leave."""
    dtype: gl.constexpr = out_ptr.dtype.element_ty
    flat: gl.constexpr = gl.BlockedLayout([1, 1], [4, 8], [sums.warps_per_cta[0], 1], [1, 0])
    n = first + gl.arange(0, LINES, layout=gl.SliceLayout(1, flat))
    token = gl.arange(0, M, layout=gl.SliceLayout(0, flat))[None, :]
    known = n < OUT
    y = _total(acc, sums, flat)
    if BIAS:
        y += gl.load(bias_ptr + n, mask=known, other=0.0).to(gl.float32)[:, None]
    if GATE:
        up = _total(acc_up, sums, flat)
        if BIAS:
            up += gl.load(bias_ptr + OUT + n, mask=known, other=0.0).to(gl.float32)[:, None]
        gate = y.to(dtype).to(gl.float32)
        silu = (gate / (1.0 + gl.exp(-gate))).to(dtype).to(gl.float32)
        y = silu * up.to(dtype).to(gl.float32)
    where = out_ptr + token.to(gl.int64) * OUT + n[:, None]
    gl.store(where, y.to(dtype), mask=known[:, None] & (token < tokens))


@gluon_jit
def _block(
    ws, us, xs, first, later, line, k, at_x, k_x, w_ptr, bias_ptr, out_ptr, tokens,
    M: gl.constexpr, K: gl.constexpr, OUT: gl.constexpr, LINES: gl.constexpr, BLOCK_K: gl.constexpr,
    AHEAD: gl.constexpr, MORE: gl.constexpr, HOLD: gl.constexpr, GATE: gl.constexpr, BIAS: gl.constexpr,
    WIDE: gl.constexpr, MASKED: gl.constexpr, MASKED_LATER: gl.constexpr, sums: gl.constexpr,
):  # fmt: skip
    """One block of outputs from `first` on, whose first steps (ws, of up us, xs) are on their way; those of
    the block at `later` then are."""
    STEPS: gl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    rows, real = _rows(first, line, OUT, K, 0, WIDE)
    rows_later, real_later = _rows(later, line, OUT, K, 0, WIDE)
    now, then = w_ptr + rows + k, w_ptr + rows_later + k
    WARPS: gl.constexpr = sums.warps_per_cta[0]
    zero = gl.zeros([WARPS, 2 * LINES, M], gl.float32, sums)
    acc = (zero, zero)
    acc_up = (zero, zero)
    for step in gl.static_range(STEPS):
        if HOLD:
            x = xs[step]
        else:
            x = xs[0]
        acc = (mma_v2(ws[0], x[0], acc[0]), mma_v2(ws[0], x[1], acc[1]))
        ws = _following(
            ws, now, real, then, real_later, k, step, K, BLOCK_K, STEPS, AHEAD, MORE, MASKED, MASKED_LATER
        )
        if GATE:
            acc_up = (mma_v2(us[0], x[0], acc_up[0]), mma_v2(us[0], x[1], acc_up[1]))
            us = _following(
                us, now + OUT * K, real, then + OUT * K, real_later, k, step,
                K, BLOCK_K, STEPS, AHEAD, MORE, MASKED, MASKED_LATER,
            )  # fmt: skip
        if not HOLD:
            xs = xs[1:]
            if MORE or step + AHEAD < STEPS:
                xs = xs + (_inputs(at_x, k_x, (step + AHEAD) % STEPS, K, BLOCK_K),)  # noqa: RUF005
    _store(acc, acc_up, bias_ptr, out_ptr, tokens, first, M, OUT, LINES, GATE, BIAS, sums)
    return ws, us, xs


@gluon_jit(do_not_specialize=["tokens"])
def _linear_direct(
    x_ptr, w_ptr, bias_ptr, out_ptr, tokens, x_stride,
    M: gl.constexpr, N: gl.constexpr, K: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    WARPS: gl.constexpr, AHEAD: gl.constexpr, TURNS: gl.constexpr, HOLD: gl.constexpr,
    GATE: gl.constexpr, BIAS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    # Grid: (programs,), each of which takes TURNS blocks of outputs. A step is BLOCK_K columns of a block's
    # lines, AHEAD of them are on their way. HOLD: all of x stays in registers. GATE: half of a block's lines
    # are the gate's, the others their partners in up.
    LINES: gl.constexpr = BLOCK_N // 2 if GATE else BLOCK_N
    OUT: gl.constexpr = N // 2 if GATE else N
    SHARE: gl.constexpr = BLOCK_K // WARPS
    SPAN: gl.constexpr = (((OUT + LINES - 1) // LINES + TURNS - 1) // TURNS) * LINES  # of all programs
    WIDE: gl.constexpr = N * K > 2147483647
    FIRST_X: gl.constexpr = (K + BLOCK_K - 1) // BLOCK_K if HOLD else AHEAD
    sums: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, 16, 8])
    left: gl.constexpr = gl.DotOperandLayout(0, sums, 8)  # 8 columns at a time: 16 bytes
    right: gl.constexpr = gl.DotOperandLayout(1, sums, 8)

    row = gl.arange(0, 2 * LINES, layout=gl.SliceLayout(0, gl.SliceLayout(2, left)))[None, :, None]
    line = row // 2
    share = gl.arange(0, WARPS, layout=gl.SliceLayout(1, gl.SliceLayout(2, left)))[:, None, None]
    k = gl.arange(0, SHARE // 2, layout=gl.SliceLayout(0, gl.SliceLayout(1, left)))[None, None, :]
    k = share * SHARE + (row % 2) * 32 + (k // 32) * 64 + k % 32
    first = gl.program_id(0) * LINES
    rows, real = _rows(first, line, OUT, K, 0, WIDE)
    ws = _first_weights(w_ptr + rows + k, real, k, K, BLOCK_K, AHEAD, SPAN > OUT)
    us = ()
    if GATE:
        us = _first_weights(w_ptr + rows + OUT * K + k, real, k, K, BLOCK_K, AHEAD, SPAN > OUT)
    gluon_enter(PDL)

    share_x = gl.arange(0, WARPS, layout=gl.SliceLayout(1, gl.SliceLayout(2, right)))[:, None, None]
    k_x = gl.arange(0, SHARE // 2, layout=gl.SliceLayout(0, gl.SliceLayout(2, right)))[None, :, None]
    k_x = share_x * SHARE + (k_x // 32) * 64 + k_x % 32
    token = gl.arange(0, M, layout=gl.SliceLayout(0, gl.SliceLayout(1, right)))[None, None, :]
    # Columns past the last token repeat it: the same addresses, and no mask.
    at_x = x_ptr + gl.minimum(token, tokens - 1) * x_stride + k_x
    xs = _first_inputs(at_x, k_x, K, BLOCK_K, FIRST_X)
    for turn in gl.static_range(TURNS):  # no loop: what is on its way would be waited for at its end
        ws, us, xs = _block(
            ws, us, xs, first, first + SPAN, line, k, at_x, k_x, w_ptr, bias_ptr, out_ptr, tokens,
            M, K, OUT, LINES, BLOCK_K, AHEAD, turn + 1 < TURNS, HOLD, GATE, BIAS, WIDE,
            (turn + 1) * SPAN > OUT, (turn + 2) * SPAN > OUT, sums,
        )  # fmt: skip
        first = first + SPAN
