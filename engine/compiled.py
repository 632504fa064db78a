"""How many kernels this process has compiled: a count that whoever compiles adds to. A leaf, free of torch.

One a process, as the compiler is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class CompileCount:
    """Of kernel variants that were compiled, or loaded from the cache on disk: a serving engine should have
    met all of them while it started. Triton calls a hook after each; kernels in CUDA C++ call `add`."""

    def __init__(self) -> None:
        self.total = 0

    def add(self) -> None:
        self.total += 1

    def before(self, other: Callable[..., Any] | None) -> Callable[..., Any]:
        """The hook that counts and then calls `other`."""

        def hook(**event: Any) -> Any:
            self.add()
            return None if other is None else other(**event)

        return hook


COMPILED = CompileCount()
