"""Two backends for one role: one attends in prefill passes, the other in decode and verify passes.

A composite: computes its facts from its children's and passes every call on. Knows no concrete backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from backends.base import AttentionBackend, AttentionContext, BackendFacts, facts_of
from engine.batch import ForwardBatch, HostLens, LayerKV, Mode
from engine.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
CHILDREN = ("prefill", "decode")
_ORDER = (HostLens.NONE, HostLens.BOUND, HostLens.EXACT)


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
        facts = self.facts({key: facts_of(children[key]) for key in CHILDREN})
        # Class variables by declaration: an instance of a composite has its own, over those of the class.
        vars(self).update({key: value for key, value in vars(facts).items() if key != "name"})
        self._use(self._decode)

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Chooses the child for the pass; `ops` is that child's until the next pass."""
        self._use(self._prefill if batch.mode is Mode.EXTEND else self._decode)
        self._active.init_forward_metadata(batch)

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
            host_lens=max(prefill.host_lens, decode.host_lens, key=_ORDER.index),
            tree_mask=decode.tree_mask,
            device_metadata=decode.device_metadata,
            page_sizes=_common(prefill.page_sizes, decode.page_sizes),
            dtypes={
                device: _common(names, decode.dtypes[device]) or ()
                for device, names in prefill.dtypes.items()
                if device in decode.dtypes
            },
            max_verify_width=decode.max_verify_width,
            step_kernels=decode.step_kernels,
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


def _common(first: tuple[T, ...] | None, second: tuple[T, ...] | None) -> tuple[T, ...] | None:
    """What both hold; None stands for anything."""
    if first is None or second is None:
        return second if first is None else first
    return tuple(item for item in first if item in second)
