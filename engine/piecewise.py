"""`pcg=piecewise` and `pcg=full`: prefill runs from graphs, its passes padded to captured sizes.

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
from engine.prefill_graphs.buckets import Buckets, automatic, request_counts

if TYPE_CHECKING:
    import torch

    from engine import runner as runners
    from engine.passes import Passes
    from engine.prefill_graphs import piecewise, whole
    from engine.runner import ModelRunner
else:
    piecewise = lazy_import("engine.prefill_graphs.piecewise")
    runners = lazy_import("engine.runner")
    whole = lazy_import("engine.prefill_graphs.whole")

log = logging.getLogger("syncless")
AUTO, START = "auto", "start"


class Piecewise(PrefillMode):
    """The model's own boundary splits a pass: everything token-wise is captured, attention stays eager."""

    captures_prefill = True

    @dataclass(frozen=True)
    class Config:
        """buckets: token counts to capture, "auto" for a list up to the largest pass. capture: all of them
        at start, or each when a pass first needs it (lazy)."""

        buckets: tuple[int, ...] | str = AUTO
        capture: str = choice(START, (START, "lazy"))

    config: Config

    @classmethod
    def check(cls, config: Config) -> list[str]:
        return size_problems("pcg.buckets", config.buckets)

    @classmethod
    def planned_graphs(cls, config: Config, largest: int, running: int, device: str) -> tuple[int, int]:
        return _counted(config.buckets, largest, device)

    def passes(self, inner: Passes, context: ModeContext) -> Passes:
        _say_what_a_cpu_is_good_for("piecewise", context)
        captures = piecewise.Captures(
            buckets(self.config.buckets, context), context.page_size, context.capturer.beside
        )
        self._passes = piecewise.PiecewisePasses(inner, captures, context.metrics)
        return self._passes

    def runner(self, inner: ModelRunner, context: ModeContext) -> ModelRunner:
        """By now the model knows which states it collects."""
        if self.config.capture == START:
            self._passes.prepare(inner.driver.attentions(), _device(inner), context.progress)
        return inner


class FullPrefill(PrefillMode):
    """A prefill pass is one graph, where attention plans on the device."""

    captures_prefill = True
    captures_chunk = True

    @dataclass(frozen=True)
    class Config:
        """buckets, capture: as of pcg=piecewise. requests: prompts in a pass to capture each size for, "auto"
        or a list; the largest batch is always among them."""

        buckets: tuple[int, ...] | str = AUTO
        requests: tuple[int, ...] | str = AUTO
        capture: str = choice(START, (START, "lazy"))

    config: Config

    @classmethod
    def check(cls, config: Config) -> list[str]:
        return [
            *size_problems("pcg.buckets", config.buckets),
            *size_problems("pcg.requests", config.requests),
        ]

    @classmethod
    def planned_graphs(cls, config: Config, largest: int, running: int, device: str) -> tuple[int, int]:
        captured, most = _counted(config.buckets, largest, device)
        return captured * len(request_counts(config.requests, running)), most

    def runner(self, inner: ModelRunner, context: ModeContext) -> ModelRunner:
        _say_what_a_cpu_is_good_for("full", context)
        counts = self._counts(context.max_running)
        limits = whole.Limits(counts, context.context, context.longest, context.page_size)
        chosen = buckets(self.config.buckets, context)
        driver = whole.WholePrefill(inner.driver, chosen, limits, context.capturer.beside(), context.metrics)
        if self.config.capture == START:
            driver.prepare(_device(inner), context.progress)
        return runners.ModelRunner(inner.model, inner.attention, inner.pool, driver)

    def _counts(self, max_running: int) -> tuple[int, ...]:
        asked = self.config.requests
        beyond = [] if isinstance(asked, str) else [count for count in asked if count > max_running]
        if beyond:
            log.warning(
                "pcg.requests: no pass has more than scheduler.max_running=%d prompts; not captured: %s",
                max_running,
                ", ".join(map(str, beyond)),
            )
        return request_counts(asked, max_running)


def _device(runner: ModelRunner) -> torch.device:
    return runner.pool.layers[0].k.device


def _say_what_a_cpu_is_good_for(option: str, context: ModeContext) -> None:
    if context.device == "cpu":
        log.warning(
            "pcg=%s without a GPU replays recorded operations: for checks, no faster than pcg=none", option
        )


def size_problems(where: str, asked: Sequence[int] | str) -> list[str]:
    """What is wrong with a list of sizes, one sentence each."""
    if isinstance(asked, str):
        fine = asked == AUTO
        return [] if fine else [f"{where}={asked} is neither a list of sizes nor auto; use {where}=auto"]
    if not asked:
        return [f"{where}=[] captures nothing; use pcg=none, or {where}=auto"]
    return [f"{where}: {size} is no size; use sizes from 1 up" for size in asked if size < 1]


def _counted(asked: Sequence[int] | str, largest: int, device: str) -> tuple[int, int]:
    """(sizes that are captured, the largest of them)."""
    if size_problems("pcg.buckets", asked):
        return 0, 0
    chosen = (
        Buckets(automatic(largest, device)) if isinstance(asked, str) else Buckets.within(asked, largest)[0]
    )
    sizes = chosen.sizes
    return len(sizes), max(sizes, default=0)


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
