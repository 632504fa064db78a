"""How the memory of a device is divided: what everything but the KV pool will take, and the pool's share.

The torch side of engine.needs and engine.pool_size: it asks the device what is free. Runs when the weights
are there and nothing else is.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from engine.build import TARGET, make_config, target_class
from engine.cache.base import PrefixCache
from engine.errors import UserError
from engine.factories import Sizes
from engine.memory import MemoryPlan, PlanSizes, memory_plan
from engine.models.base import CausalLM
from engine.modes import BatchMode, GraphMode, PrefillMode
from engine.needs import USUAL_PROCESSORS, Needs
from engine.policy import SchedulerConfig
from engine.pool_size import AUTO, Free, Owned, auto_context, check_fits, cpu_tokens, free_tokens, gpu_tokens
from speculative.base import DraftMemory, DraftModel, SpecPlan, Speculator

Node = Mapping[str, Any]
logger = logging.getLogger("syncless")
LARGEST_ATTENTION = 0.25  # of the free memory: a reference backend's worst case may exceed the device


@dataclass(frozen=True)
class Wanted:
    """Everything that sizes depend on, but for what is free. weights: dtype of the weights. drafts: what a
    draft model takes."""

    cache: PrefixCache.Config
    model: CausalLM
    weights: str
    draft: DraftModel | None
    drafts: DraftMemory | None
    sizes: PlanSizes
    owned: Owned

    @property
    def per_token(self) -> int:
        """KV bytes of a token, the draft's included."""
        draft = 0 if self.draft is None else self.draft.kv_layout.bytes_per_token()
        return self.model.kv_layout.bytes_per_token() + draft

    def plan_for(self, tokens: int, context: int) -> MemoryPlan:
        """The memory plan of a pool of `tokens`."""
        sizes = replace(self.sizes, tokens=tokens, context=context)
        return memory_plan(self.model.shape, self.weights, self.model.kv_layout.dtype, sizes, self.drafts)


@dataclass(frozen=True)
class Budget:
    """The sizes that were chosen, and the memory plan that they make."""

    sizes: Sizes
    plan: MemoryPlan


@dataclass(frozen=True)
class Modes:
    """What is captured, and in how many batches a pass runs."""

    graph: GraphMode
    prefill: PrefillMode
    batches: BatchMode


def wanted(
    cache: PrefixCache.Config,
    limits: SchedulerConfig,
    model: CausalLM,
    weights: str,
    plan: SpecPlan,
    draft: DraftModel | None,
    attention: Node,
    spec: Node,
    modes: Modes,
    on: torch.device,
) -> Wanted:
    """Ask the parts what they need. attention, spec: nodes of the config."""
    algorithm: type[Speculator] = target_class(spec.get(TARGET))
    drafts = algorithm.memory(make_config(algorithm, spec, "spec"), model.shape, weights)
    prefill, running = modes.prefill, limits.max_running
    needs = Needs(
        shape=model.shape,
        compute=model.kv_layout.dtype,
        page_size=cache.page_size,
        context=auto_context(cache.max_context, model.shape.longest),
        running=running,
        chunk=limits.chunk_tokens,
        plan=plan,
        attention=attention,
        spec=spec,
        states=0 if draft is None else len(draft.aux_layers),
        relay=0 if drafts is None else drafts.relay_per_row,
        decode_graphs=len(modes.graph.sizes(running)),
        prefill_graphs=prefill.planned_graphs(prefill.config, limits.chunk_tokens, running, on.type),
        lanes=2 if modes.batches.splits_batch else 1,
        device=on.type,
        processors=_processors(on),
    )
    owned = Owned(cache.page_size, plan.width, plan.draft_slots)
    return Wanted(cache, model, weights, draft, drafts, needs.sizes(), owned)


def _processors(on: torch.device) -> int:
    if on.type == "cpu":
        return USUAL_PROCESSORS
    return int(torch.cuda.get_device_properties(on).multi_processor_count)


def budget(want: Wanted, on: torch.device) -> Budget:
    """Resolve the automatic sizes. UserError where something does not fit, with what would."""
    return _on_cpu(want) if on.type == "cpu" else divide(want, _free(on))


def _on_cpu(want: Wanted) -> Budget:
    """The pool stays small, and grows page by page as it is touched."""
    context, asked = want.sizes.context, want.cache.tokens
    if asked != AUTO:
        return _built(want, int(asked), context)
    owned = want.owned.slots(context)
    return _built(want, cpu_tokens(owned, want.sizes.passes.running, want.per_token), context)


def divide(want: Wanted, free: Free) -> Budget:
    """The sizes on a GPU with this much free memory."""
    attention = min(want.sizes.attention, int(LARGEST_ATTENTION * free.bytes))
    want = replace(want, sizes=replace(want.sizes, attention=attention, margin=free.margin))
    context, owned = want.sizes.context, want.owned
    asked = want.cache.tokens, want.cache.max_context
    plan = want.plan_for(0, context)
    most = free_tokens(free, plan, want.per_token, want.cache.page_size)
    check_fits(asked, context, owned, most, free, plan)
    tokens = gpu_tokens(asked[0], owned, context, want.sizes.passes.running, most)
    if asked == (AUTO, AUTO) and context > owned.longest(tokens):
        context = _shortened(context, owned.longest(tokens))
    return _built(want, tokens, context)


def _shortened(context: int, longest: int) -> int:
    """The context that an automatic pool leaves."""
    logger.warning(
        "cache.max_context=auto: the KV pool holds requests of %s tokens beside all else, not the %s that "
        "the model could",
        f"{longest:,}",
        f"{context:,}",
    )
    return longest


def _built(want: Wanted, tokens: int, context: int) -> Budget:
    page_size, passes = want.cache.page_size, want.sizes.passes
    pages = tokens // page_size
    if pages < 1:
        raise UserError(f"cache.tokens={tokens} is less than one page of cache.page_size={page_size}")
    sizes = Sizes(pages, page_size, context, passes.running, passes.width, want.sizes.draft_slots)
    return Budget(sizes, want.plan_for(pages * page_size, context))


def _free(on: torch.device) -> Free:
    """What is free now. What torch keeps for later since the weights were read is given back first."""
    torch.cuda.empty_cache()
    return Free(int(torch.cuda.mem_get_info(on)[0]), torch.cuda.get_device_name(on))
