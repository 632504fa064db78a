"""`pcg=piecewise`: prefill runs from graphs between attention calls, its passes padded to captured sizes.

Free of torch: options and their checks; what is captured, and how, is in engine/prefill_graphs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.build import choice
from engine.lazy import lazy_import
from engine.modes import ModeContext, PrefillMode
from engine.prefill_graphs.buckets import Buckets, automatic

if TYPE_CHECKING:
    from engine.passes import Passes
    from engine.prefill_graphs import piecewise
    from engine.runner import ModelRunner
else:
    piecewise = lazy_import("engine.prefill_graphs.piecewise")

log = logging.getLogger("syncless")
AUTO = "auto"


class Piecewise(PrefillMode):
    """The model's own boundary splits a pass: everything token-wise is captured, attention stays eager."""

    captures_prefill = True

    @dataclass(frozen=True)
    class Config:
        """buckets: token counts to capture, "auto" for a list up to the largest pass. capture: all of them
        at start, or each when a pass first needs it (lazy)."""

        buckets: tuple[int, ...] | str = AUTO
        capture: str = choice("start", ("start", "lazy"))

    config: Config

    @classmethod
    def check(cls, config: Config) -> list[str]:
        return bucket_problems("pcg.buckets", config.buckets)

    def passes(self, inner: Passes, context: ModeContext) -> Passes:
        chosen = buckets(self.config.buckets, context)
        captures = piecewise.Captures(chosen, context.page_size, context.capturer.beside)
        self._passes = piecewise.PiecewisePasses(inner, captures, context.metrics)
        return self._passes

    def runner(self, inner: ModelRunner, context: ModeContext) -> ModelRunner:
        """By now the model knows which states it collects."""
        if self.config.capture == "start":
            device = inner.pool.layers[0].k.device
            self._passes.prepare(inner.driver.attentions(), device, context.progress)
        return inner


def bucket_problems(where: str, asked: Sequence[int] | str) -> list[str]:
    """What is wrong with a list of sizes, one sentence each."""
    if isinstance(asked, str):
        fine = asked == AUTO
        return (
            [] if fine else [f"{where}={asked} is neither a list of token counts nor auto; use {where}=auto"]
        )
    if not asked:
        return [f"{where}=[] captures nothing; use pcg=none, or {where}=auto"]
    return [f"{where}: {size} is no token count; use sizes from 1 up" for size in asked if size < 1]


def largest_pass(context: ModeContext) -> int:
    """Tokens of the largest prefill pass that can occur."""
    return min(context.chunk_tokens, context.max_running * context.context)


def buckets(asked: Sequence[int] | str, context: ModeContext) -> Buckets:
    """The sizes to capture; those that no pass can need are left out, with a warning where a user gave
    them."""
    limit = largest_pass(context)
    if isinstance(asked, str):
        return Buckets(automatic(limit, context.device))
    kept, dropped = Buckets.within(asked, limit)
    if dropped:
        log.warning(
            "pcg.buckets: prefill passes have %d tokens at most, and none is padded to more than twice its "
            "own; not captured: %s",
            limit,
            ", ".join(map(str, dropped)),
        )
    return kept
