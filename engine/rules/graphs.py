"""Rules about graphs and host lengths: what may sit inside a captured step."""

from __future__ import annotations

from engine.batch import HostLens
from engine.facts import Facts
from engine.rules.base import Answer, Rule, first_problem, not_applicable, ok


def step_graph(facts: Facts) -> Answer:
    """A captured step needs attention that builds its metadata on the device."""
    if not facts.flag("graph", "captures_step", False):
        return not_applicable(f"{facts.named('graph')} captures no step")
    wrong = [
        f"{facts.named('graph')} captures the whole step, and {slot.backend.name} ({slot.role} attention) "
        f"prepares on the host; use graph=none, or an attention with device metadata"
        for slot in facts.slots
        if slot.backend is not None and not slot.backend.device_metadata
    ]
    return first_problem(wrong, "every attention slot builds its metadata on the device")


def host_lengths(facts: Facts) -> Answer:
    """Exact host lengths cost a wait a step; a captured step cannot give them."""
    causes = host_length_causes(facts)
    if not causes:
        return ok("nobody reads exact lengths on the host")
    if not facts.flag("graph", "captures_step", False):
        return ok(f"a host mirror is kept for {', '.join(causes)}")
    return first_problem(
        [f"{facts.named('graph')} gives no exact lengths to {', '.join(causes)}; use graph=none"], ""
    )


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
    Rule("host lengths", "exact host lengths can be had where somebody reads them", host_lengths),
)
