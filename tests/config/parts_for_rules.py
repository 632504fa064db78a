"""Parts that no release has: each breaks, or needs, one thing that the rules ask about."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from backends.base import AttentionBackend, BackendFacts
from engine.batch import HostLens
from engine.build import number
from engine.modes import ExecutionMode
from speculative.base import NoSpeculation, SpecPlan


class Attention(AttentionBackend):
    """Fits everything."""

    host_lens = HostLens.NONE
    tree_mask = True
    device_metadata = True
    page_sizes = None
    dtypes = {"cpu": ("float32", "bfloat16"), "cuda": ("float32", "bfloat16")}  # noqa: RUF012
    max_verify_width = 16

    def __init__(self, config: Any, context: Any) -> None: ...

    def init_forward_metadata(self, batch: Any) -> None: ...

    def forward(self, *_: Any) -> Any: ...


class Pair(Attention):
    """A composite: the weaker child decides."""

    @classmethod
    def facts(cls, children) -> BackendFacts:
        parts = list(children.values())
        order = [HostLens.NONE, HostLens.BOUND, HostLens.EXACT]
        return replace(
            super().facts(children),
            host_lens=max((p.host_lens for p in parts), key=order.index),
            tree_mask=all(p.tree_mask for p in parts),
            device_metadata=all(p.device_metadata for p in parts),
            max_verify_width=min(p.max_verify_width for p in parts),
        )


class ExactLengths(Attention):
    host_lens = HostLens.EXACT


class HostMetadata(Attention):
    device_metadata = False


class NoTree(Attention):
    tree_mask = False


class Narrow(Attention):
    max_verify_width = 4


class BigPages(Attention):
    page_sizes = (64, 128)


class CudaOnly(Attention):
    dtypes = {"cuda": ("bfloat16",)}  # noqa: RUF012


class HalfOnly(Attention):
    dtypes = {"cpu": ("bfloat16",), "cuda": ("bfloat16",)}  # noqa: RUF012


class Needing(Attention):
    requires = ("json", "a_package_nobody_has")


class Drafter(NoSpeculation):
    """Drafts `steps` tokens in a tree, with attention of its own."""

    reads_cpu_seq_lens = False

    @dataclass(frozen=True)
    class Config:
        steps: int = number(3, ge=1)

    @classmethod
    def planned(cls, config: Any) -> SpecPlan:
        return SpecPlan(width=int(config.steps) + 1, tree=True, draft=True, draft_extend=True)

    @classmethod
    def check(cls, config: Any) -> list[str]:
        return ["spec.steps=13 brings bad luck; use spec.steps=12"] if config.steps == 13 else []


class Silent(NoSpeculation):
    """Does not say whether it reads lengths."""

    reads_cpu_seq_lens = True


class StepGraph(ExecutionMode):
    captures_step = True
    contents = ("propose", "forward", "accept", "commit", "observe")


class CudaGraph(StepGraph):
    devices = ("cuda",)
