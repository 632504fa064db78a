"""Small constructors for the execution modes: where each of them wraps a part. For the container.

Knows the order of the wraps and no mode.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from backends.base import AttentionBackend
from engine.factories import Sizes
from engine.graphs.capture import Capturer
from engine.kv_pool import KVPool
from engine.metrics import EngineMetrics
from engine.models.base import CausalLM
from engine.models.source import Progress
from engine.modes import BatchMode, GraphMode, ModeContext, PrefillMode
from engine.passes import Driver, Passes, PlainPasses
from engine.policy import SchedulerConfig
from engine.runner import ModelRunner
from engine.scratch_steps import ScratchSteps
from engine.warm_up import Limits, warm_up
from speculative.base import DraftModel, SpecPlan


def context(
    capturer: Capturer,
    metrics: EngineMetrics,
    size: Sizes,
    limits: SchedulerConfig,
    plan: SpecPlan,
    on: torch.device,
    progress: Progress,
    drafts: Sequence[AttentionBackend | None] = (),
) -> ModeContext:
    """What modes are built with. drafts: the attention of draft passes."""
    metrics.captures = capturer.costs
    drafting = [backend for backend in drafts if backend is not None]
    return ModeContext(
        capturer,
        metrics,
        size.max_running,
        size.table.context,
        limits.chunk_tokens,
        tuple(dict.fromkeys((plan.width, *plan.measures, 1))),
        on.type,
        size.page_size,
        progress,
        size.context + size.width,
        bool(drafting) and all(backend.device_metadata for backend in drafting),
    )


def passes(model: CausalLM, pool: KVPool, prefill: PrefillMode, around: ModeContext) -> Passes:
    """How passes of the target begin."""
    return prefill.passes(PlainPasses(model, pool.layers), around)


def driver(begins: Passes, attention: AttentionBackend, batches: BatchMode, around: ModeContext) -> Driver:
    """How they are driven."""
    return batches.driver(begins, attention, around)


def runner(
    model: CausalLM,
    attention: AttentionBackend,
    pool: KVPool,
    drives: Driver,
    draft: DraftModel | None,
    prefill: PrefillMode,
    graph: GraphMode,
    around: ModeContext,
) -> ModelRunner:
    """The target's runner; it collects the layer inputs that a draft model reads."""
    if draft is not None:
        model.collect(draft.aux_layers)
    inner = prefill.runner(ModelRunner(model, attention, pool, drives), around)
    return graph.runner(inner, around)


def bare(around: ModelRunner, drives: Driver) -> ModelRunner:
    """A runner without the graphs around it, for passes that serve nobody."""
    return ModelRunner(around.model, around.attention, around.pool, drives)


def warmed(scratch: ScratchSteps, batches: BatchMode, around: ModeContext) -> int:
    """Compile what steps need, on a GPU; elsewhere nothing is compiled. Returns the steps that it took."""
    if around.device == "cpu":
        return 0
    longest = min(around.chunk_tokens, around.context - 1)
    limits = Limits(longest, around.chunk_tokens, batches.splits_batch, batches.whole)
    return warm_up(scratch, around.widths, limits, around.metrics, around.progress)


def captured(graph: GraphMode, scratch: ScratchSteps, around: ModeContext) -> tuple[int, ...]:
    """Capture what the graph mode wants at start, the largest size first: the others fit into its memory.
    Returns the sizes."""
    sizes = sorted(graph.sizes(around.max_running), reverse=True)
    if sizes:
        with scratch.untouched():
            for done, size in enumerate(sizes):
                around.progress("capturing decode graphs", done, len(sizes))
                scratch.prepare(size, around.widths[0], resume=False)
        around.progress("capturing decode graphs", len(sizes), len(sizes))
    return tuple(sizes)
