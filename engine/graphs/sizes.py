"""The batch sizes that graphs are captured for. Knows numbers and nothing of graphs; free of torch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

AUTO = "auto"
# (up to this size, distance between neighbours): padding stays below a third of a batch, and past 16 below a
# fifth, where every request more costs time.
_STEPS = ((2, 1), (4, 2), (16, 4), (64, 8), (128, 16), (256, 32), (1 << 30, 64))


def auto_sizes(max_running: int) -> tuple[int, ...]:
    """1, 2, 4, 8, 12, 16, 24, ... below `max_running`, and `max_running` itself, whatever it is."""
    sizes, size = [], 1
    while size < max_running:
        sizes.append(size)
        size += next(distance for upto, distance in _STEPS if size < upto)
    return (*sizes, max_running)


def chosen_sizes(asked: str | Sequence[int], max_running: int) -> tuple[int, ...]:
    """The sizes that a configuration means, in order; see `size_problems` for what can be wrong with it."""
    return auto_sizes(max_running) if isinstance(asked, str) else tuple(sorted(set(asked)))


def size_problems(asked: str | Sequence[int], group: str = "graph") -> list[str]:
    """What is wrong with a value of `sizes`, one sentence each."""
    if isinstance(asked, str):
        if asked == AUTO:
            return []
        return [f"{group}.sizes={asked} is no list of batch sizes; use {group}.sizes=auto or a list as [1,8]"]
    shown = "[" + ",".join(map(str, asked)) + "]"
    if not asked:
        return [f"{group}.sizes={shown} captures nothing; use graph=none, or give a size such as [1]"]
    if any(size < 1 for size in asked):
        return [f"{group}.sizes={shown} holds sizes below 1; give sizes from 1 up"]
    return []


class BatchSizes:
    """The captured sizes, asked for the one that a batch fits into."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """sizes: at least one, none below 1."""
        self.all = tuple(sorted(sizes))
        self.largest = self.all[-1]

    def fit(self, count: int) -> int | None:
        """The smallest size that holds `count` requests; None past the largest one."""
        at = bisect_left(self.all, count)
        return self.all[at] if at < len(self.all) else None
