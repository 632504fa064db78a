"""Two backends for one role: one attends in prefill passes, the other in decode and verify passes.

A composite: computes its facts from its children's and passes every call on. Knows no concrete backend.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backends.base import AttentionBackend, AttentionContext, BackendFacts, facts_of
from backends.composite import common, common_dtypes, declare, neediest
from engine.batch import ForwardBatch, LayerKV, Mode
from engine.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

CHILDREN = ("prefill", "decode")


class Hybrid(AttentionBackend):
    """Children `prefill` and `decode`. Both work on the same KV pool, so either may follow the other."""

    @dataclass(frozen=True)
    class Config:
        """No options of its own; the children are nodes of the yaml."""

    def __init__(
        self, config: Any, context: AttentionContext, children: Mapping[str, AttentionBackend]
    ) -> None:
        _check_children(children)
        self._prefill, self._decode = (children[key] for key in CHILDREN)
        declare(self, self.facts({key: facts_of(children[key]) for key in CHILDREN}))
        self._use(self._decode)

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Chooses the child for the pass; `ops` is that child's until the next pass."""
        self._use(self._prefill if batch.mode is Mode.EXTEND else self._decode)
        self._active.init_forward_metadata(batch)

    def plan_graph(self, batch: ForwardBatch) -> Hashable:
        return self._decode.plan_graph(batch)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, kv: LayerKV, batch: ForwardBatch) -> Tensor:
        return self._active.forward(q, k, v, kv, batch)

    def children(self) -> tuple[AttentionBackend, ...]:
        return self._prefill, self._decode

    @classmethod
    def facts(cls, children: Mapping[str, BackendFacts]) -> BackendFacts:
        """What passes of one kind alone decide comes from that child; the rest must suit both."""
        _check_children(children)
        prefill, decode = (children[key] for key in CHILDREN)
        return BackendFacts(
            name=f"{cls.__module__}.{cls.__name__}",
            host_lens=neediest((prefill.host_lens, decode.host_lens)),
            tree_mask=decode.tree_mask,
            device_metadata=decode.device_metadata,
            page_sizes=common(prefill.page_sizes, decode.page_sizes),
            dtypes=common_dtypes(prefill.dtypes, decode.dtypes),
            max_verify_width=decode.max_verify_width,
            step_kernels=decode.step_kernels,
            plans_outside=decode.plans_outside,
            own_products=prefill.own_products or decode.own_products,
        )

    def _use(self, child: AttentionBackend) -> None:
        self._active = child
        self.ops = child.ops


def _check_children(children: Mapping[str, object]) -> None:
    if set(children) != set(CHILDREN):
        given = ", ".join(children) or "nothing"
        raise UserError(
            f"attention=hybrid needs the backends prefill and decode, but was given {given}: choose both, "
            "for example attention@attention.prefill=torch attention@attention.decode=triton"
        )
