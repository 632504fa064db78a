"""What a command line would run: wiring, flags and who caused them, memory plan, every rule. Builds nothing.

Plain data from class facts and shapes: no weights, no device, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from engine.compose import Resolved
from engine.conf_tree import conf_tree
from engine.facts import Facts, Slot, gather
from engine.footprints import kv_layout
from engine.kernel_choices.described import described
from engine.memory import MemoryPlan, memory_plan
from engine.needs import USUAL_STATES, Needs
from engine.overrides import chosen_options
from engine.pool_size import AUTO, MARGIN_BYTES, Owned, auto_context, cpu_tokens
from engine.rules import verdicts
from engine.rules.base import Verdict
from engine.rules.graphs import host_length_causes, planned_prefills, planned_sizes


@dataclass(frozen=True)
class Explanation:
    """The answer, for a person and for a program. plan None: the model's shape is not known here yet."""

    facts: Facts
    caused_by: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    plan: MemoryPlan | None

    @property
    def needs_cpu_seq_lens(self) -> bool:
        return bool(self.caused_by)

    @property
    def accepted(self) -> bool:
        """Whether the engine would start."""
        return not any(verdict.violated for verdict in self.verdicts)

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of `task=explain task.format=json`."""
        return {
            "accepted": self.accepted,
            "needs_cpu_seq_lens": self.needs_cpu_seq_lens,
            "caused_by": list(self.caused_by),
            "slots": [slot_row(slot) for slot in self.facts.slots],
            "parts": part_rows(self.facts),
            "device": asdict(self.facts.device),
            "dtype": {"weights": self.facts.weights, "compute": self.facts.compute},
            "step": {
                "width": self.facts.width,
                "graph": list(graph_contents(self.facts)),
                "sizes": list(planned_sizes(self.facts)),
            },
            "kernels": kernels_text(self.facts),
            "memory": plan_dict(self.plan),
            "rules": [asdict(verdict) for verdict in self.verdicts],
        }


def explain(resolved: Resolved) -> Explanation:
    """Explain a composed config; violations are part of the answer, not an error."""
    facts = gather(resolved)
    return Explanation(facts, host_length_causes(facts), verdicts(facts), plan(facts))


def explain_config(config: Mapping[str, Any], overrides: Sequence[str]) -> Explanation:
    """The same for a config that these overrides have made already."""
    return explain(Resolved(config, tuple(overrides), chosen_options(overrides, conf_tree())))


def plan(facts: Facts) -> MemoryPlan | None:
    """The memory plan, as far as shapes and configs tell."""
    if (
        facts.shape is None
        or facts.weights is None
        or facts.compute is None
        or facts.slots[0].backend is None
    ):
        return None
    needs = _needs(facts)
    owned = Owned(needs.page_size, facts.width, facts.spec.draft_slots).slots(needs.context)
    tokens, draft = facts.option("cache", "tokens"), facts.draft_memory
    on_cpu = needs.device == "cpu"
    automatic = not isinstance(tokens, int)
    if automatic:
        per_token = kv_layout(facts.shape, facts.compute).bytes_per_token()
        per_token += 0 if draft is None else draft.kv_per_token
        tokens = cpu_tokens(owned, needs.running, per_token) if on_cpu else owned
    sizes = replace(
        needs.sizes(),
        tokens=tokens // needs.page_size * needs.page_size,
        at_least=automatic and not on_cpu,
        margin=0 if on_cpu else MARGIN_BYTES,
    )
    return memory_plan(facts.shape, facts.weights, facts.compute, sizes, draft)


def _needs(facts: Facts) -> Needs:
    assert facts.shape is not None
    assert facts.compute is not None
    draft, running = facts.draft_memory, facts.option("scheduler", "max_running") or 1
    context = auto_context(facts.option("cache", "max_context") or AUTO, facts.shape.longest)
    chunk = facts.option("scheduler", "chunk_tokens") or context
    device = "cpu" if facts.device.kind == "cpu" else "cuda"
    return Needs(
        shape=facts.shape,
        compute=facts.compute,
        page_size=facts.option("cache", "page_size") or 1,
        context=context,
        running=running,
        chunk=chunk,
        plan=facts.spec,
        attention=facts.cfg["attention"],
        spec=facts.cfg["spec"],
        states=0 if draft is None else USUAL_STATES,
        relay=0 if draft is None else draft.relay_per_row,
        decode_graphs=len(planned_sizes(facts)),
        prefill_graphs=planned_prefills(facts, chunk, device),
        lanes=2 if facts.flag("tbo", "splits_batch", False) else 1,
        device=device,
    )


def slot_row(slot: Slot) -> dict[str, Any]:
    """One attention role; backend null: no part has such a forward."""
    backend = slot.backend
    if backend is None:
        return {"role": slot.role, "backend": None, "host_lens": None}
    return {
        "role": slot.role,
        "backend": backend.name,
        "host_lens": backend.host_lens.value,
        "tree_mask": backend.tree_mask,
        "device_metadata": backend.device_metadata,
        "page_sizes": None if backend.page_sizes is None else list(backend.page_sizes),
        "max_verify_width": backend.max_verify_width,
        "dtypes": {device: list(names) for device, names in backend.dtypes.items()},
    }


def part_rows(facts: Facts) -> list[dict[str, Any]]:
    """Group, option and class of every chosen part."""
    return [
        {
            "group": group,
            "option": facts.choices.get(group),
            "class": f"{part.cls.__module__}.{part.cls.__qualname__}",
        }
        for group, part in facts.parts.items()
    ]


def graph_contents(facts: Facts) -> tuple[str, ...]:
    """The stages of a decode step that lie in graphs; empty: every step runs eagerly."""
    return tuple(facts.flag("graph", "contents", ()))


def kernels_text(facts: Facts) -> str:
    """What computes products of few tokens."""
    target = facts.slots[0].backend
    return described(str(facts.cfg["kernels"]), facts.device, target is not None and target.own_products)


def plan_dict(found: MemoryPlan | None) -> Mapping[str, Any] | None:
    """Bytes by name, with the arithmetic in words."""
    return None if found is None else found.as_dict()
