"""How kernels are run in this process: compiled for a GPU or interpreted on the CPU, and the sizes that suit.

Knows no kernel. Triton decides when a kernel is decorated, so this is fixed at the first import.
"""

from typing import Any

import triton
import triton.language as tl
from triton import knobs
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.runtime.jit import JITFunction

from engine.compiled import COMPILED

# Triton's own functions were decorated when it was first imported: they tell what this process can still do.
INTERPRETED: bool = not isinstance(tl.sum, JITFunction)

jit: Any = triton.jit  # a kernel's body is Triton's language, not Python for a type checker

# In the interpreter an operation costs about the same whatever its size; Triton allows 2^20 elements.
INTERPRETED_TILE = 1 << 18
_ONE_THREAD_PRODUCT = 1 << 18  # multiplications up to which OpenBLAS stays on one thread


@jit  # type: ignore[untyped-decorator]
def enter(PDL: tl.constexpr) -> None:  # noqa: N803
    """The first thing that a kernel does which may be launched as a dependent one, in every program: wait for
    the kernel in front, whose end also means the end of all before it, then let the next one start. Hence two
    rules: every program gets here, with no return before; and what is read before is never written while
    kernels run, that is weights."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


def dependent(wanted: bool) -> dict[str, bool]:
    """Launch arguments of a kernel that calls `enter`: its programs may start while the kernel in front ends
    (programmatic dependent launch, compute capability 9 and up)."""
    return {"PDL": True, "launch_pdl": True} if wanted else {"PDL": False}


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
