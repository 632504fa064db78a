"""Steps before the first request, so that no request waits for a kernel to be compiled.

Knows which steps compile all there is: every width, batch sizes that cut their work differently, short and
long prompts, certain and drawn tokens. Nothing of kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.batch import SamplingClass
from engine.calibrate import ScratchSteps
from engine.metrics import EngineMetrics
from engine.models.source import Progress

PROMPTS = (8, 64, 512)  # tokens: products of few, tiles of half and of full size
DRAWN = SamplingClass(sampled=True)
WHAT = "compiling kernels"


def warm_up(
    scratch: ScratchSteps, widths: Sequence[int], longest: int, metrics: EngineMetrics, progress: Progress
) -> int:
    """Run them, eagerly; returns how many. widths: of decode steps; longest: tokens of the largest prompt."""
    prompts = sorted({min(tokens, longest) for tokens in PROMPTS})
    batches = batch_sizes(scratch.max_batch)
    decodes = [(batch, width, SamplingClass()) for width in widths for batch in batches]
    decodes += [(1, width, DRAWN) for width in widths]
    total = len(prompts) + len(decodes)
    with scratch.untouched(), metrics.unchanged():
        for done, tokens in enumerate(prompts):
            progress(WHAT, done, total)
            scratch.prefill(tokens)
        for done, (batch, width, sampling) in enumerate(decodes, len(prompts)):
            progress(WHAT, done, total)
            scratch.decode(batch, width, False, sampling)
    progress(WHAT, total, total)
    return total


def batch_sizes(most: int) -> list[int]:
    """Powers of two, and the largest batch."""
    return sorted({1 << n for n in range(most.bit_length())} | {most})
