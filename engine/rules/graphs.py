"""Rules about graphs and host lengths: what may sit inside a captured step."""

from __future__ import annotations

from engine.batch import HostLens
from engine.facts import Facts
from engine.rules.base import Answer, Rule, first_problem, not_applicable, ok, violated


def step_graph(facts: Facts) -> Answer:
    """A captured step needs attention that builds its metadata on the device."""
    if not facts.flag("graph", "captures_step", False):
        return not_applicable(f"{facts.named('graph')} captures no step")
    wrong = [
        f"{facts.named('graph')} captures the whole step, and {slot.backend.name} ({slot.role} attention) "
        f"prepares on the host; use {_other_graph(facts)}, or an attention with device metadata as "
        "attention=triton"
        for slot in facts.slots
        if slot.backend is not None and not slot.backend.device_metadata
    ]
    return first_problem(wrong, "every attention slot builds its metadata on the device")


def forward_graph(facts: Facts) -> Answer:
    """A captured forward is planned outside of its graph, or needs no planning."""
    if not facts.flag("graph", "captures_forward", False):
        return not_applicable(f"{facts.named('graph')} captures no forward by itself")
    target, drafts = facts.slots[0].backend, [slot.backend for slot in facts.slots[1:]]
    if target is not None and not target.device_metadata and not target.plans_outside:
        return violated(
            f"{facts.named('graph')} wants {target.name} ({facts.named('attention')}) to be planned outside "
            "of graphs, and it cannot be; use graph=none"
        )
    eager = [backend.name for backend in drafts if backend is not None and not backend.device_metadata]
    told = f"; the draft runs eagerly: {eager[0]} prepares on the host" if eager else ""
    return ok(f"the target's forward is captured{told}")


def graph_sizes(facts: Facts) -> Answer:
    """Captured batch sizes are sizes that batches may have."""
    sizes = planned_sizes(facts)
    if not sizes:
        return not_applicable(f"{facts.named('graph')} captures no batch sizes")
    running = facts.option("scheduler", "max_running") or 1
    if sizes[-1] > running:
        return violated(
            f"graph.sizes ends at {sizes[-1]}, and no decode step has more than "
            f"scheduler.max_running={running} requests; use graph.sizes=auto or sizes up to {running}"
        )
    past = f"; steps of more than {sizes[-1]} requests run eagerly" if sizes[-1] < running else ""
    return ok(f"captured batch sizes: {', '.join(map(str, sizes))}{past}")


def planned_sizes(facts: Facts) -> tuple[int, ...]:
    """The batch sizes that the graph mode captures at start; none where it captures none, or its values are
    wrong."""
    part = facts.parts.get("graph")
    ask = None if part is None else getattr(part.cls, "planned_sizes", None)
    if part is None or ask is None:
        return ()
    return tuple(ask(part.config, facts.option("scheduler", "max_running") or 1))


def planned_prefills(facts: Facts, largest: int, device: str) -> tuple[int, int]:
    """As of PrefillMode.planned_graphs. largest: tokens of the largest pass."""
    part = facts.parts.get("pcg")
    ask = None if part is None else getattr(part.cls, "planned_graphs", None)
    if part is None or ask is None:
        return 0, 0
    captured, most = ask(part.config, largest, facts.option("scheduler", "max_running") or 1, device)
    return captured, most


def host_lengths(facts: Facts) -> Answer:
    """Exact host lengths cost a wait a step; a captured step cannot give them."""
    causes = host_length_causes(facts)
    if not causes:
        return ok("nobody reads exact lengths on the host")
    if not facts.flag("graph", "captures_step", False):
        return ok(f"a host mirror is kept for {', '.join(causes)}")
    return violated(
        f"{facts.named('graph')} gives no exact lengths to {', '.join(causes)}; use {_other_graph(facts)}"
    )


def _other_graph(facts: Facts) -> str:
    """What to use in the place of graph=step."""
    target = facts.slots[0].backend
    plans = target is not None and (target.device_metadata or target.plans_outside)
    return "graph=forward or graph=none" if plans else "graph=none"


def host_length_causes(facts: Facts) -> tuple[str, ...]:
    """Who will read exact lengths on the host, by the class facts; engine.lengths asks the instances."""
    spec = facts.parts.get("spec")
    reads = spec is not None and facts.flag("spec", "reads_cpu_seq_lens", True) is not False
    causes = [f"speculator ({spec.cls.__name__})"] if reads and spec is not None else []
    causes += [
        f"{slot.role} attention ({slot.backend.name.rpartition('.')[2]})"
        for slot in facts.slots
        if slot.backend is not None and slot.backend.host_lens is HostLens.EXACT
    ]
    return tuple(causes)


GRAPH_RULES = (
    Rule("step graph", "what a captured step contains can be captured", step_graph),
    Rule("forward graph", "what a captured forward reads can be planned", forward_graph),
    Rule("graph sizes", "captured batch sizes are those of batches", graph_sizes),
    Rule("host lengths", "exact host lengths can be had where somebody reads them", host_lengths),
)
