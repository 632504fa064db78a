"""What is known of a configuration before anything is built: class-level facts of every chosen part.

Feeds rules, explain and the memory plan. Asks parts what they are, never which one they are; free of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from backends.base import AttentionBackend, BackendFacts
from engine.build import TARGET, config_problems, make_config, parts_of, target_class
from engine.compose import Resolved
from engine.config import is_device
from engine.devices import DeviceFacts, device_facts
from engine.errors import UserError
from engine.models.shape import ModelShape
from engine.models.source import ModelSource, compute_dtype
from speculative.base import DraftMemory, SpecPlan

Node = Mapping[str, Any]
T = TypeVar("T")
DRAFT_SLOTS = ("draft", "draft_extend")
DRAFT_NODE = "draft_attention"


@dataclass(frozen=True)
class Part:
    """A chosen part. where: its dotted path in the config. config None: its values are not valid."""

    where: str
    cls: type
    config: Any


@dataclass(frozen=True)
class Slot:
    """One attention role. backend None: no part of this configuration has such a forward."""

    role: str
    where: str
    backend: BackendFacts | None


@dataclass(frozen=True)
class Facts:
    """Everything that rules may ask. What cannot be had is None; why is in `failures`."""

    cfg: Node
    choices: Mapping[str, str]
    device: DeviceFacts
    parts: Mapping[str, Part]
    slots: tuple[Slot, ...]
    source: ModelSource | None
    shape: ModelShape | None
    weights: str | None
    failures: Mapping[str, str]
    overrides: tuple[str, ...] = ()  # of the command line

    def named(self, group: str) -> str:
        """The choice as a user would write it: attention=torch."""
        return f"{group}={self.choices.get(group, '?')}"

    def option(self, group: str, name: str) -> Any:
        """A value of a part's Config; None where the part or the value is absent."""
        part = self.parts.get(group)
        return None if part is None else getattr(part.config, name, None)

    def flag(self, group: str, name: str, default: Any) -> Any:
        """A class fact of a group's part."""
        part = self.parts.get(group)
        return default if part is None else getattr(part.cls, name, default)

    @property
    def width(self) -> int:
        """Drafts + 1 of the widest decode step."""
        return self.spec.width

    @property
    def spec(self) -> SpecPlan:
        """What the draft algorithm asks of the engine."""
        return _spec_plan(self.parts.get("spec"))

    @property
    def draft_memory(self) -> DraftMemory | None:
        """What a draft model takes; None: there is none, or it is not known before it is read."""
        part = self.parts.get("spec")
        ask = None if part is None else getattr(part.cls, "memory", None)
        if ask is None or part is None or self.shape is None or self.weights is None:
            return None
        found: DraftMemory | None = ask(part.config, self.shape, self.weights)
        return found

    @property
    def compute(self) -> str | None:
        """dtype of activations and KV."""
        return None if self.weights is None else compute_dtype(self.weights)


def gather(resolved: Resolved) -> Facts:
    """Collect the facts; a part that cannot be read leaves a failure instead of an exception."""
    failures: dict[str, str] = {}
    groups = {key: node for key, node in resolved.cfg.items() if isinstance(node, Mapping) and TARGET in node}
    found = {group: _try(failures, group, partial(_part, node, group)) for group, node in groups.items()}
    parts = {group: part for group, part in found.items() if part is not None}
    asked = resolved.cfg.get("device")
    device = device_facts(str(asked) if is_device(asked) else "auto")  # composing has named a wrong one
    slots = _slots(groups, parts, failures)
    source = _try(failures, "model", lambda: _source(parts))
    shape = None if source is None else _try(failures, "shape", source.shape)
    weights = _weights(source, slots, device, failures)
    cfg, choices = resolved.cfg, resolved.choices
    return Facts(cfg, choices, device, parts, slots, source, shape, weights, failures, resolved.overrides)


def _try(failures: dict[str, str], name: str, make: Callable[[], T | None]) -> T | None:
    try:
        return make()
    except UserError as error:
        failures[name] = "; ".join(str(error).splitlines())
        return None


def _part(node: Node, where: str) -> Part | None:
    cls = target_class(node[TARGET])
    if config_problems(cls, node, where):
        return None  # composing has named them
    return Part(where, cls, make_config(cls, node, where))


def _source(parts: Mapping[str, Part]) -> ModelSource | None:
    part = parts.get("model")
    if part is None:
        return None
    if not issubclass(part.cls, ModelSource):
        raise UserError(f"model: {part.cls.__name__} is no model source")
    return part.cls(part.config)


def backend_facts(node: Node, where: str) -> BackendFacts:
    """Facts of an attention node; a composite answers from its children's."""
    cls = target_class(node.get(TARGET))
    if not issubclass(cls, AttentionBackend):
        raise UserError(f"{where}: {cls.__name__} is no attention backend")
    return cls.facts({key: backend_facts(child, f"{where}.{key}") for key, child in parts_of(node).items()})


def _spec_plan(part: Part | None) -> SpecPlan:
    planned = None if part is None else getattr(part.cls, "planned", None)
    return SpecPlan() if planned is None or part is None else planned(part.config)


def _slots(groups: Node, parts: Mapping[str, Part], failures: dict[str, str]) -> tuple[Slot, ...]:
    nodes: dict[str, tuple[str, Node | None]] = {"target": ("attention", groups.get("attention"))}
    plan = _spec_plan(parts.get("spec"))
    where = f"spec.{DRAFT_NODE}"
    draft_node = parts_of(groups.get("spec", {})).get(DRAFT_NODE)
    for role, wanted in zip(DRAFT_SLOTS, (plan.draft, plan.draft_extend), strict=True):
        nodes[role] = (where, draft_node if wanted else None)
    return tuple(
        Slot(role, at, None if node is None else _try(failures, at, partial(backend_facts, node, at)))
        for role, (at, node) in nodes.items()
    )


def _weights(
    source: ModelSource | None, slots: tuple[Slot, ...], device: DeviceFacts, failures: dict[str, str]
) -> str | None:
    target = slots[0].backend
    if source is None or target is None:
        return None
    supported = target.dtypes.get(device.kind, ())
    return _try(failures, "dtype", lambda: source.resolve_dtype(device.kind, supported))
