"""What of a table serves in this process: not every one can use kernels in CUDA C++. Free of torch.

Is told whether such kernels can be used; finds out nothing itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from engine.kernel_choices.source import Found

logger = logging.getLogger("syncless")


def usable(found: Found, why_not: Callable[[], str]) -> Found:
    """The table, with other plans in place of those in CUDA C++ where these cannot be used: then, and that is
    what a warning says, products take the next best that was measured. why_not: the reason as a clause, empty
    where they can be used; asked only if there are such plans.
    """
    count = sum(entry.in_cuda for entry in found.table.entries.values())
    reason = why_not() if count else ""
    if not reason:
        return found
    logger.warning(
        "kernels in CUDA C++ cannot be used, %s: at %s of %s measured places products take the next best",
        reason, count, len(found.table.entries),
    )  # fmt: skip
    return Found(found.table.without_cuda(), f"{found.why}, without kernels in CUDA C++ ({reason})")
