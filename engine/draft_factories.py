"""Small constructors for what a drafter needs: plan, model, KV pool, attention, host, width policy.

For the container, like engine/factories.py. Knows the draft contract and no algorithm.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from backends.base import AttentionBackend
from engine.build import parts_of, target_class
from engine.calibrate import Gauge
from engine.device_queue import DeviceQueue
from engine.factories import Node, Sizes, attention_for, typed
from engine.facts import DRAFT_NODE, DRAFT_SLOTS
from engine.kernel_choices.source import Found
from engine.kv_pool import KVPool
from engine.metrics import EngineMetrics
from engine.models.base import CausalLM, LoadedModel
from engine.models.source import Progress
from engine.modes import GraphMode, ModeContext
from engine.provenance import device_facts
from engine.runner import ModelRunner
from engine.sampling.columns import SamplingColumns
from engine.sampling.sampler import Sampler
from engine.scheduling.acceptance_watch import UNWATCHED, AcceptanceAlarm, AcceptanceWatch
from engine.scratch_steps import ScratchSteps
from engine.step import Step
from engine.step_costs import costs_from
from engine.table import RequestTable
from engine.text.base import Tokenizer
from engine.timed import TimedRunner, TimedSpeculator, TimedStep
from speculative.base import DraftHost, DraftModel, DraftTarget, SpecPlan, Speculator
from speculative.forced import Forced
from speculative.ops import DraftOps, draft_ops
from speculative.width import StepCosts, WidthPolicy

logger = logging.getLogger("syncless")

Drafts = tuple[AttentionBackend | None, AttentionBackend | None]  # draft, draft_extend


def spec_plan(node: Node) -> SpecPlan:
    """What the algorithm of a spec node asks of the engine."""
    plan: SpecPlan = _algorithm(node).planned(typed(node, "spec"))
    return plan


def _algorithm(node: Node) -> type[Speculator]:
    found: type[Speculator] = target_class(node.get("_target_"))
    return found


def draft_model(
    node: Node, loaded: LoadedModel, name: str, weights: str, on: torch.device
) -> DraftModel | None:
    """The draft model, if the algorithm has one. name: the target as messages call it; weights: its dtype."""
    model = loaded.model
    target = DraftTarget(name, model.shape, model.embedding, model.logits, weights, str(on))
    return _algorithm(node).load(typed(node, "spec"), target)


def draft_pool(
    draft: DraftModel | None, plan: SpecPlan, size: Sizes, on: torch.device, overlap: Node
) -> KVPool | None:
    """The draft's KV under the target's page ids, with its scratch behind the pages."""
    if draft is None:
        return None
    scratch = plan.scratch * size.table.rows
    poison = bool(overlap.get("debug"))
    return KVPool(draft.kv_layout, size.pages, size.page_size, on, poison=poison, scratch=scratch)


def draft_attention(
    node: Node, plan: SpecPlan, draft: DraftModel | None, size: Sizes, on: torch.device, found: Found
) -> Drafts:
    """(draft, draft_extend): None where the algorithm has no such forward."""
    if draft is None:
        return None, None
    backend = parts_of(node)[DRAFT_NODE]
    plans = found.table.choices()
    widest = replace(size, width=max(size.width, plan.scratch, 1))
    made = [
        attention_for(backend, draft, draft.kv_layout, widest, on, role, plans) if wanted else None
        for role, wanted in zip(DRAFT_SLOTS, (plan.draft, plan.draft_extend), strict=True)
    ]
    return made[0], made[1]


def draft_host(
    draft: DraftModel | None,
    pool: KVPool | None,
    drafts: Drafts,
    target: AttentionBackend,
    size: Sizes,
    tokenizer: Tokenizer,
    model: CausalLM,
    on: torch.device,
    metrics: EngineMetrics,
) -> DraftHost:
    """What the engine brings to the drafter."""
    return DraftHost(
        device=on,
        rows=size.table.rows,
        context=size.table.context,
        page_size=size.page_size,
        vocab_size=model.shape.vocab_size,
        kernels=target.step_kernels,
        encode=tokenizer.encode,
        model=draft,
        kv=() if pool is None else tuple(pool.layers),
        first_scratch=0 if pool is None else pool.first_scratch,
        draft=drafts[0],
        draft_extend=drafts[1],
        count=metrics.count,
        early=target.ops.early,
    )


def ops(target: AttentionBackend, plan: SpecPlan, columns: SamplingColumns) -> DraftOps:
    """What a step computes on drafts; with a forced accept length if the plan asks for one."""
    return draft_ops(target.step_kernels, target.ops.early, _forced(plan, columns))


def _forced(plan: SpecPlan, columns: SamplingColumns) -> Forced | None:
    if plan.simulated is None:
        return None
    assert plan.simulated <= plan.longest_run, f"runs of {plan.simulated} tokens, {plan.longest_run} at most"
    logger.warning(
        "the accept length is forced to %g: what comes out is not the model's text, and no speed of it is "
        "one of a real draft",
        plan.simulated,
    )
    return Forced(plan.simulated, columns.key)


def plain_step(
    table: RequestTable, runner: ModelRunner, speculator: Speculator, sampler: Sampler, draft_ops: DraftOps
) -> Step:
    """The step without graphs and clocks, for steps that serve nobody."""
    return Step(table, runner, speculator, sampler, draft_ops)


def step(
    table: RequestTable,
    runner: ModelRunner,
    speculator: Speculator,
    sampler: Sampler,
    draft_ops: DraftOps,
    metrics: EngineMetrics,
    on: torch.device,
    graph: GraphMode,
    around: ModeContext,
) -> Step:
    """The step, with clocks that run when somebody asks."""
    stages = metrics.stages
    stages.cuda = on.type == "cuda"
    drafter = TimedSpeculator(graph.speculator(speculator, around), stages)
    inner = Step(table, TimedRunner(runner, stages), drafter, sampler, draft_ops)
    return TimedStep(graph.step(inner, around), stages)


def step_costs(
    choice: str,
    plan: SpecPlan,
    scratch: ScratchSteps,
    circumstances: Node,
    on: torch.device,
    metrics: EngineMetrics,
    progress: Progress,
) -> StepCosts | None:
    """What steps cost, if the algorithm's width policy asks. circumstances: what the figures depend on,
    besides the machine."""
    if not plan.measures:
        return None
    key = {**circumstances, **device_facts(str(on)), "threads": torch.get_num_threads()}
    key["torch"] = torch.__version__

    gauge = Gauge(scratch, metrics, plan.measures, plan.draft_extend, progress)
    return costs_from(choice, key, plan.measures, gauge)


def scratch_steps(
    table: RequestTable,
    step: Step,
    pool: KVPool,
    draft: KVPool | None,
    queue: DeviceQueue,
    needs_lens: tuple[bool, tuple[str, ...]],
) -> ScratchSteps:
    """Steps before the first request, to be timed."""
    pools = [pool] if draft is None else [pool, draft]
    return ScratchSteps(table, step, pools, queue, needs_lens[0])


def acceptance_watch(speculator: Speculator, plan: SpecPlan) -> AcceptanceWatch:
    """An alarm where the draft's makers said what to expect; forced acceptance says nothing of a draft."""
    expected = speculator.expected_acceptance()
    if expected is None or plan.simulated is not None:
        return UNWATCHED
    return AcceptanceAlarm(expected, plan.longest_run - 1)


def width_policy(speculator: Speculator, costs: StepCosts | None = None) -> WidthPolicy:
    """What chooses the width of every decode step."""
    return speculator.width_policy(costs)
