# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Which of several programs is the last to have stored its part, so that it can put all of them together.

Knows a counter that is zero between launches, nothing of parts.
"""

from __future__ import annotations

import triton.language as tl

from kernels.launch import jit


@jit
def arrived_last(counter, used):
    """True in the last of `used` programs that stored their parts and got here; the counter is zero again
    then, for the next launch."""
    tl.debug_barrier()  # one thread counts for all: what the others stored has to be visible before
    before = tl.atomic_add(counter, 1, sem="acq_rel")
    last = before == used - 1
    tl.store(counter, 0, mask=last)
    return last
