"""Rules about prefill graphs and two-batch overlap: what they need of model, attention and each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from backends.base import BackendFacts
from engine.build import parts_of
from engine.facts import Facts, backend_facts
from engine.rules.base import Answer, Rule, first_problem, not_applicable, ok, unknown, violated
from engine.rules.graphs import planned_prefills


def prefill_graph(facts: Facts) -> Answer:
    """Segments of a pass end where the model stops for attention."""
    if not facts.flag("pcg", "captures_prefill", False):
        return not_applicable(f"{facts.named('pcg')} captures no prefill")
    graphs, most = planned_prefills(facts, facts.option("scheduler", "chunk_tokens") or 1, facts.device.kind)
    if facts.flag("pcg", "captures_chunk", False):
        return ok(f"prefill passes are graphs, attention included: {graphs} of them, up to {most} tokens")
    if not facts.flag("model", "stops_for_attention", True):
        return violated(
            f"{facts.named('pcg')} captures what lies between attention calls, and {facts.named('model')} "
            "makes none: it reads the KV pool itself; use pcg=none, or another model"
        )
    return ok(
        f"prefill is replayed in segments between attention calls, which run eagerly: {graphs} sizes, up to "
        f"{most} tokens"
    )


def whole_prefill(facts: Facts) -> Answer:
    """A captured pass includes its attention, and cannot be cut in halves any more."""
    if not facts.flag("pcg", "captures_chunk", False):
        return not_applicable(f"{facts.named('pcg')} captures no attention")
    if facts.slots[0].backend is None:
        return unknown("the attention is not known")
    wrong = [
        f"{facts.named('pcg')} captures attention too, and {backend.name} ({facts.named('attention')}) "
        "prepares on the host; use pcg=piecewise, or attention=triton"
        for backend in _leaves(facts.cfg["attention"], "attention")
        if not backend.device_metadata
    ]
    if facts.flag("tbo", "splits_batch", False):
        wrong.append(
            f"{facts.named('pcg')} replays a prefill pass as one graph, and {facts.named('tbo')} runs it as "
            "two halves, layer by layer; use pcg=piecewise, or tbo=none"
        )
    return first_problem(wrong, "attention plans prefill passes on the device")


def two_batches(facts: Facts) -> Answer:
    """What splitting does here: said, since it is no gain on one device."""
    if not facts.flag("tbo", "splits_batch", False):
        return not_applicable(f"{facts.named('tbo')} splits no batch")
    requests, tokens = facts.option("tbo", "min_requests"), facts.option("tbo", "min_tokens")
    running = facts.option("scheduler", "max_running")
    never = isinstance(running, int) and isinstance(requests, int) and running < requests
    small = (
        f"with scheduler.max_running={running} no pass is ever split"
        if never
        else f"passes of fewer than {requests} requests or {tokens} tokens run as one batch, and are counted"
    )
    return ok(f"nothing to overlap: {facts.flag('tbo', 'drawback', 'one device')}; {small}")


def _leaves(node: Mapping[str, Any], where: str) -> Iterator[BackendFacts]:
    """Facts of the backends that attend, without the composites around them."""
    children = parts_of(node)
    if not children:
        yield backend_facts(node, where)
    for key, child in children.items():
        yield from _leaves(child, f"{where}.{key}")


MODE_RULES = (
    Rule("prefill graph", "prefill can be cut where it is captured", prefill_graph),
    Rule("whole prefill", "a captured prefill pass holds what can be captured", whole_prefill),
    Rule("two batches", "what splitting a pass does here", two_batches),
)
