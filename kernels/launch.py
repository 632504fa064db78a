"""How kernels are run in this process: compiled for a GPU or interpreted on the CPU, and the sizes that suit.

Knows no kernel. Triton decides when a kernel is decorated, so this is fixed at the first import.
"""

import ctypes
import logging
from typing import Any

import triton
import triton.language as tl
from triton import knobs
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.runtime.jit import JITFunction

from engine.compiled import COMPILED

logger = logging.getLogger("syncless")

_CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
_PERCENT = 25  # of the memory, as a wish; 12 to 37 measured alike
_LEAN: set[int] = set()  # handles of kernels that were asked for

# Triton's own functions were decorated when it was first imported: they tell what this process can still do.
INTERPRETED: bool = not isinstance(tl.sum, JITFunction)

jit: Any = triton.jit  # a kernel's body is Triton's language, not Python for a type checker
gluon_jit: Any = gluon.jit  # the same with layouts in the program's hands; there is no interpreter for it
gluon_barrier: Any = getattr(gl, "barrier", None) or getattr(gl, "thread_barrier")  # noqa: B009  3.7, 3.6

# In the interpreter an operation costs about the same whatever its size; Triton allows 2^20 elements.
INTERPRETED_TILE = 1 << 18
_ONE_THREAD_PRODUCT = 1 << 18  # multiplications up to which OpenBLAS stays on one thread


@jit  # type: ignore[untyped-decorator]
def enter(PDL: tl.constexpr) -> None:  # noqa: N803
    """Stands in the way of every program of a kernel that may be launched as a dependent one: wait for the
    kernel in front, whose end also means the end of all before it, then let the next one start. No program
    returns before.

    What may be read before it: weights, which nothing writes while kernels run, and what was written two
    kernels in front or earlier. Why: a kernel starts early only when each program of the one in front has
    got past its own wait, that is, when the one before that has ended and what it wrote is in memory; and so
    on up to the first. A kernel that is launched otherwise (torch's, the library's) begins after the end of
    all in front of it, and so does what waits for an event or begins a graph. What only the kernel in front
    wrote is never read before: its end, even the library's, does not mean yet that it can be seen. Reads of
    what kernels write go past the first-level cache (".cg"): it may keep what an earlier kernel read there.

    Of a pass, that holds for all that describes its batch (lengths, rows, starts, page table, tree, window,
    positions, slots), which is made before the embedding, and for the KV of earlier passes: embedding,
    products and `rope_store` stand between those and attention, the first two before `rope_store`.
    tests/engine/test_launch_distance.py follows every such value to its last writer.
    """
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


@gluon_jit  # type: ignore[untyped-decorator]
def gluon_enter(PDL: tl.constexpr) -> None:  # noqa: N803
    """`enter`, of kernels in Gluon."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


def dependent(wanted: bool) -> dict[str, bool]:
    """Launch arguments of a kernel that calls `enter`: its programs may start while the kernel in front ends
    (programmatic dependent launch, compute capability 9 and up)."""
    return {"PDL": True, "launch_pdl": True} if wanted else {"PDL": False}


def leave_cache(kernel: Any) -> None:
    """Ask the driver to make no more of a multiprocessor's memory shared memory than a compiled kernel's
    blocks need: the rest is first-level cache. Triton asks for as much as there is for every kernel above
    48 KiB; those that are launched dependently around it then run with what cache it leaves, since the
    division only changes when nothing runs. (CUDA driver API, cuFuncSetAttribute.)
    """
    if kernel is None or kernel.function in _LEAN:  # interpreted, or done
        return
    code = ctypes.CDLL("libcuda.so.1").cuFuncSetAttribute(
        ctypes.c_void_p(kernel.function), _CARVEOUT, ctypes.c_int(_PERCENT)
    )
    if code:
        logger.warning("the driver refused to leave cache beside %s (CUDA error %s)", kernel.name, code)
    _LEAN.add(kernel.function)


if not INTERPRETED:  # interpreted kernels are not compiled
    knobs.runtime.jit_post_compile_hook = COMPILED.before(knobs.runtime.jit_post_compile_hook)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n; Triton's ranges must be powers of two."""
    return 1 << max(n - 1, 0).bit_length()


def tile_rows(rows: int, columns: int) -> int:
    """Rows of an element-wise tile of `columns` (a power of two): one on a GPU, all that fit otherwise."""
    if not INTERPRETED:
        return 1
    return min(power_of_two(rows), max(1, INTERPRETED_TILE // columns))


def interpreted_keys(rows: int, dim: int) -> int:
    """Keys of an attention tile in the interpreter: many, but few enough for a BLAS product on one thread.

    Its threads go on spinning after a product, which slows all else down fourfold on two cores.
    """
    return max(128, _ONE_THREAD_PRODUCT // (rows * power_of_two(dim)))


def warps_for(elements: int) -> int:
    """Warps of an element-wise tile: 8 elements a thread, 1 to 16 warps."""
    return min(16, max(1, power_of_two(elements) // 256))
