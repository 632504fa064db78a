"""Attention for two half batches in progress at once: two children of the same kind, one a half.

A composite: computes its facts from its children's. Who gives which pass to which child, and what else passes
between, is the driver's (engine/two_batches); asked itself, it attends with the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING

from backends.base import AttentionBackend, BackendFacts, facts_of
from backends.composite import all_of, declare
from engine.batch import ForwardBatch, LayerKV

if TYPE_CHECKING:
    from torch import Tensor


class TwoBatchAttention(AttentionBackend):
    """The children share the KV pool and nothing else: what each prepares for its pass, and its workspace,
    stay apart."""

    def __init__(
        self,
        first: AttentionBackend,
        second: AttentionBackend,
        parts: Callable[[ForwardBatch], tuple[ForwardBatch, ...]],
    ) -> None:
        """parts: what a pass will be cut into, one or two batches, as the driver does it."""
        self._children = first, second
        self._parts = parts
        declare(self, self.facts({"first": facts_of(first), "second": facts_of(second)}))
        self.ops = first.ops

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        self._children[0].init_forward_metadata(batch)
        self.ops = self._children[0].ops  # a composite's change with the pass

    def plan_graph(self, batch: ForwardBatch) -> Hashable:
        return tuple(
            child.plan_graph(part) for child, part in zip(self._children, self._parts(batch), strict=False)
        )

    def forward(self, q: Tensor, k: Tensor, v: Tensor, kv: LayerKV, batch: ForwardBatch) -> Tensor:
        return self._children[0].forward(q, k, v, kv, batch)

    def children(self) -> tuple[AttentionBackend, ...]:
        return self._children

    @classmethod
    def facts(cls, children: Mapping[str, BackendFacts]) -> BackendFacts:
        return all_of(f"{cls.__module__}.{cls.__name__}", children.values())
