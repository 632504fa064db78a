"""What a command line would run: wiring, flags and who caused them, memory plan, every rule. Builds nothing.

Plain data from class facts and shapes: no weights, no device, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from engine.compose import Resolved, compose
from engine.conf_tree import conf_tree
from engine.facts import Facts, Slot, gather
from engine.kernel_choices.described import described
from engine.memory import (
    MemoryPlan,
    PlanSizes,
    auto_context,
    auto_tokens,
    kv_layout,
    longest_owned,
    memory_plan,
)
from engine.overrides import chosen_options
from engine.rules import Verdict, verdicts
from engine.rules.graphs import host_length_causes, planned_sizes


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


def explain_overrides(overrides: Sequence[str] = ()) -> Explanation:
    """The same for a command line. Raises UserError where it names something unknown."""
    return explain(compose(overrides))


def explain_config(config: Mapping[str, Any], overrides: Sequence[str]) -> Explanation:
    """The same for a config that these overrides have made already."""
    return explain(Resolved(config, tuple(overrides), chosen_options(overrides, conf_tree())))


def plan(facts: Facts) -> MemoryPlan | None:
    """The memory plan, as far as shapes and configs tell."""
    if facts.shape is None or facts.weights is None or facts.compute is None:
        return None
    draft = facts.draft_memory
    page_size = facts.option("cache", "page_size") or 1
    context = auto_context(facts.option("cache", "max_context") or "auto", facts.shape.longest)
    running = facts.option("scheduler", "max_running") or 1
    tokens = facts.option("cache", "tokens")
    automatic = not isinstance(tokens, int)
    if automatic:
        per_token = kv_layout(facts.shape, facts.compute).bytes_per_token()
        per_token += 0 if draft is None else draft.kv_per_token
        on_cpu = facts.device.kind == "cpu"
        owned = longest_owned(context, page_size, facts.width, facts.spec.draft_slots)
        tokens = auto_tokens(owned, running, per_token, None) if on_cpu else owned
    sizes = PlanSizes(
        tokens=tokens // page_size * page_size,
        page_size=page_size,
        context=context,
        max_running=running,
        chunk=facts.option("scheduler", "chunk_tokens") or context,
        width=facts.width,
        relay_bytes=0 if draft is None else draft.relay_per_row,
        at_least=automatic and facts.device.kind != "cpu",
        draft_slots=facts.spec.draft_slots,
        scratch=facts.spec.scratch,
        graphs=len(planned_sizes(facts)) if facts.device.kind == "cuda" else 0,
        draft_passes=facts.spec.longest_run if facts.spec.draft else 0,
    )
    return memory_plan(facts.shape, facts.weights, facts.compute, sizes, draft)


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
    if found is None:
        return None
    return {"total_bytes": found.total, "items": [asdict(item) for item in found.items]}
