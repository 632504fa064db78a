"""Steps before the first request, so that no request waits for a kernel to be compiled.

Knows which steps compile all there is: every width, batch sizes and prompts that cut their work differently,
certain and drawn tokens. Nothing of kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.kernel_choices.plans import LEAN_TOKENS
from engine.metrics import EngineMetrics
from engine.models.source import Progress
from engine.sampling.asked import SamplingClass
from engine.scratch_steps import ScratchSteps

# Tokens of a prompt, each the first past a power of two: the least that takes the next larger tile, whatever
# the query heads of a KV head. Beyond the last of them tiles have their full size.
SHORT = (2, 5, 9, 17, 33, 65)
DRAWN = SamplingClass(sampled=True, shaped=True)  # shaped: penalties follow the paths of a tree
WHAT = "compiling kernels"


@dataclass(frozen=True)
class Limits:
    """longest: tokens of the largest prompt; chunk: of all prompts of a prefill pass together, at least as
    many; halved: whether a pass is cut at the request boundary nearest to its middle; whole: of a width, the
    requests of the largest decode pass that is too small for that."""

    longest: int
    chunk: int
    halved: bool = False
    whole: Callable[[int], int] = lambda width: 0


def warm_up(
    scratch: ScratchSteps, widths: Sequence[int], limits: Limits, metrics: EngineMetrics, progress: Progress
) -> int:
    """Run them, eagerly; returns how many. widths: of decode steps."""
    prompts = prefill_passes(scratch.max_batch, limits)
    decodes = [
        (batch, width, SamplingClass())
        for width in widths
        for batch in batch_sizes(scratch.max_batch, halved=limits.halved, whole=limits.whole(width))
    ]
    decodes += [(batch, width, DRAWN) for width in widths for batch in sorted({1, scratch.max_batch})]
    total = len(prompts) + len(decodes)
    with scratch.untouched(), metrics.unchanged():
        for done, tokens in enumerate(prompts):
            progress(WHAT, done, total)
            scratch.prefill(*tokens)
        for done, (batch, width, sampling) in enumerate(decodes, len(prompts)):
            progress(WHAT, done, total)
            scratch.decode(batch, width, False, sampling)
    progress(WHAT, total, total)
    return total


def prefill_passes(most: int, limits: Limits) -> list[tuple[int, ...]]:
    """Tokens of each prompt: of one alone (the fewest tiles of its size), of one among as many as may run, a
    token each (the most tiles), and of as many alike as fit into a pass (the most tokens)."""
    sizes = sorted({min(tokens, limits.longest) for tokens in (*SHORT, limits.longest)})
    found: dict[tuple[int, ...], None] = {}
    for tokens in sizes:
        beside = min(most, limits.chunk - tokens + 1) - 1
        found |= dict.fromkeys([(tokens,), (tokens, *(1,) * beside)])
    for tokens in sizes[2:]:
        found[(tokens,) * min(most, limits.chunk // tokens)] = None
    if limits.halved:
        found |= dict.fromkeys(_crowded_half(tokens, most, limits) for tokens in sizes)
    return list(found)


def _crowded_half(tokens: int, most: int, limits: Limits) -> tuple[int, ...]:
    """A pass whose first half is a prompt of so many tokens behind as many of one token as there can be: a
    prompt as large as all of them, or as large as fits, is the other half."""
    beside = max(0, min(most - 2, limits.longest, (limits.chunk - tokens) // 2))
    other = min(tokens + beside, limits.longest, limits.chunk - tokens - beside)
    return (*(1,) * beside, tokens, other) if most > 1 and other else (tokens,)


def batch_sizes(most: int, *, halved: bool = False, whole: int = 0) -> list[int]:
    """Powers of two, a quarter more of each from 16 on, the largest batch, the largest that stays whole where
    others are halved (`whole`; 0: none), and those around few tokens.

    The quarters: attention takes other tiles, and splits no longer, from limits of its own on; between two of
    those there may be no power of two: 133 to 160 requests with 8 KV heads and 132 processors. Few tokens:
    between products that are lean (Choices.lean) attention has kernels of its own; so it has in halves of a
    pass, where it is halved.
    """
    powers = {1 << n for n in range(most.bit_length())}
    quarters = {size + size // 4 for size in powers if size >= 16}
    last = {LEAN_TOKENS // width for width in range(1, LEAN_TOKENS + 1)}
    around = last | {size + 1 for size in last}
    around |= {2 * size for size in around if halved}
    return sorted(size for size in powers | quarters | around | {most, whole} if 0 < size <= most)
