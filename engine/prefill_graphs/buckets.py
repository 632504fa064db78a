"""Which sizes prefill is captured for, and which of them a pass is padded to. Free of torch.

Knows token counts and nothing of what is captured.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

SMALL = (16, 32, 64, 96, 128, 192)  # below about 200 tokens a pass costs what reading the weights costs
# (up to, step): matrix products work in tiles of 128 rows, so that a step of 128 pads for nothing
STEPS = ((2048, 128), (4096, 256), (1 << 30, 512))
CPU_LARGEST = 128  # the CPU's stand-in for a graph keeps every intermediate result
MOST_PADDING = 2  # times a pass's own tokens


def automatic(limit: int, device: str) -> tuple[int, ...]:
    """Sizes for passes of up to `limit` tokens, `limit` among them; on the CPU they end early."""
    sizes = [size for size in SMALL if size < limit]
    at = 256
    for end, step in STEPS:
        while at < min(limit, end + 1):
            sizes.append(at)
            at += step
    sizes.append(limit)
    if device == "cpu":
        sizes = [min(size, CPU_LARGEST) for size in sizes]
    return tuple(sorted(set(sizes)))


@dataclass(frozen=True)
class Buckets:
    """Captured sizes, ascending."""

    sizes: tuple[int, ...]

    @classmethod
    def within(cls, asked: Sequence[int], limit: int) -> tuple[Buckets, tuple[int, ...]]:
        """(those of `asked` that a pass of up to `limit` tokens can need, those dropped)."""
        ordered = sorted(set(asked))
        below = [size for size in ordered if size < limit]
        next_up = [size for size in ordered if size >= limit][:1]
        if below:  # no pass is padded further than that, but to the smallest size
            next_up = [size for size in next_up if size <= MOST_PADDING * limit]
        kept = (*below, *next_up)
        return cls(kept), tuple(size for size in ordered if size not in kept)

    def fit(self, tokens: int) -> int | None:
        """The size for a pass; None above the largest, and where it would be padded to more than twice its
        tokens although there is a smaller size."""
        at = bisect.bisect_left(self.sizes, tokens)
        if at == len(self.sizes) or (at and self.sizes[at] > MOST_PADDING * tokens):
            return None
        return self.sizes[at]


def request_counts(asked: Sequence[int] | str, max_running: int) -> tuple[int, ...]:
    """ "auto": one prompt, a few, as many as run; a request too many costs programs that end at once. Of a
    list what is needed; the largest batch is always among them."""
    wanted = (1, 8) if isinstance(asked, str) else asked
    return tuple(sorted({*(count for count in wanted if count < max_running), max_running}))
