"""Any backend, with exact host lengths forced upon it: what keeping a host mirror costs, for studies.

A composite of one child: declares that it reads the exact lengths and reads them before every decode pass, as
backends do that plan on the host. Knows no concrete backend.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from backends.base import AttentionBackend, AttentionContext, BackendFacts, facts_of
from backends.composite import declare
from engine.batch import ForwardBatch, HostLens, LayerKV, Mode
from engine.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

CHILD = "inner"


class ExactLens(AttentionBackend):
    """The child `inner` does all the work; its results are not changed."""

    @dataclass(frozen=True)
    class Config:
        """No options of its own; the child is a node of the yaml."""

    def __init__(
        self, config: Any, context: AttentionContext, children: Mapping[str, AttentionBackend]
    ) -> None:
        self._inner: AttentionBackend = _only(children)
        declare(self, self.facts({CHILD: facts_of(self._inner)}))
        self.ops = self._inner.ops

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        if not batch.planned:
            _read(batch)
        self._inner.init_forward_metadata(batch)
        self.ops = self._inner.ops  # a composite's change with the pass

    def plan_graph(self, batch: ForwardBatch) -> Hashable:
        _read(batch)
        return self._inner.plan_graph(batch)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, kv: LayerKV, batch: ForwardBatch) -> Tensor:
        return self._inner.forward(q, k, v, kv, batch)

    def children(self) -> tuple[AttentionBackend, ...]:
        return (self._inner,)

    @classmethod
    def facts(cls, children: Mapping[str, BackendFacts]) -> BackendFacts:
        """The child's, except for what is forced: lengths that are known on the host only outside of a
        graph."""
        inner: BackendFacts = _only(children)
        return replace(
            inner,
            name=f"{cls.__module__}.{cls.__name__}",
            host_lens=HostLens.EXACT,
            device_metadata=False,
            plans_outside=inner.plans_outside or inner.device_metadata,
        )


def _read(batch: ForwardBatch) -> None:
    if batch.mode is Mode.VERIFY:
        batch.seq_lens.exact("attention=exact_lens")


def _only(children: Mapping[str, Any]) -> Any:
    if set(children) != {CHILD}:
        given = ", ".join(children) or "nothing"
        raise UserError(
            f"attention=exact_lens wraps one backend, inner, but was given {given}: choose it, for example "
            "attention@attention.inner=triton"
        )
    return children[CHILD]
