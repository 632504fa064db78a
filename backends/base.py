"""The attention contract: what every backend promises and which facts about itself it declares.

Importable without torch, so that rules and `task=explain` can read the facts. Knows no concrete backend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from backends.model_ops import ModelOps as ModelOps  # engine may import this file alone of the contract
from engine.batch import ForwardBatch, HostLens, LayerKV
from engine.kernel_choices.plans import NO_CHOICES, Choices

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class AttentionContext:
    """What a backend is built from: the shapes of one model role on one device.

    role: "target", "draft" or "draft_extend". max_rows: table rows R. max_width: widest VERIFY pass.
    max_context: positions a row can hold. scale: factor on q.k before the softmax. choices: how products of
    few tokens are computed, for backends whose operations have own kernels. lean: numbers of tokens of a pass
    whose products leave shared memory alone (Choices.lean).
    """

    role: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    page_size: int
    max_rows: int
    max_width: int
    max_context: int
    device: torch.device
    dtype: torch.dtype
    choices: Choices = NO_CHOICES
    lean: frozenset[int] = frozenset()


@dataclass(frozen=True)
class AttentionSizes:
    """What a backend's working memory depends on, before anything is built: as in AttentionContext.
    element_size: bytes of an element of q; chunk: tokens of the largest EXTEND pass; processors:
    multiprocessors of the GPU."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    max_rows: int
    max_width: int
    max_context: int
    element_size: int
    chunk: int
    processors: int = 132


@dataclass(frozen=True)
class BackendFacts:
    """What the rules may know of a backend before it is built; fields as on AttentionBackend."""

    name: str
    host_lens: HostLens
    tree_mask: bool
    device_metadata: bool
    page_sizes: tuple[int, ...] | None
    dtypes: Mapping[str, tuple[str, ...]]
    max_verify_width: int
    step_kernels: str = "torch"
    plans_outside: bool = False
    own_products: bool = False


class AttentionBackend(ABC):
    """Attention over the paged KV pool. One object a role; the same class serves all roles.

    Facts are class attributes with conservative defaults; each opt-out carries its reason in one line. A
    composite computes its own from its children (see `host_lens_of`), so read facts of an instance through
    the instance.
    """

    host_lens: ClassVar[HostLens] = HostLens.EXACT  # what it reads of the lengths on the host
    tree_mask: ClassVar[bool] = False  # whether it honours ForwardBatch.tree_mask and window_slots
    device_metadata: ClassVar[bool] = False  # whether its metadata may be built inside a CUDA graph
    plans_outside: ClassVar[bool] = False  # whether `plan_graph` can prepare a captured pass from outside
    page_sizes: ClassVar[tuple[int, ...] | None] = (1,)  # None: any
    dtypes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "cpu": ("float32",)
    }  # device type -> compute dtypes of q, k, v
    max_verify_width: ClassVar[int] = 1
    step_kernels: ClassVar[str] = "torch"  # which of speculative.ops suits: "torch" or "triton"
    own_products: ClassVar[bool] = False  # whether its operations follow AttentionContext.choices

    @dataclass(frozen=True)
    class Config:
        """Options of the backend's yaml; subclasses replace it."""

    ops: ModelOps

    @abstractmethod
    def __init__(self, config: Any, context: AttentionContext) -> None:
        """Allocate what lives as long as the engine. A composite takes a third argument: its built children
        by the name of their yaml key."""

    @abstractmethod
    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Prepare once a pass, before the first layer. Must accept an IDLE batch (zero requests)."""

    def plan_graph(self, batch: ForwardBatch) -> Hashable:
        """Prepare a VERIFY pass that runs inside a graph, from outside: called before every replay, and
        before the capture, with that run's tensors, bounds and, where somebody declares EXACT, lengths.

        Passes of one shape with equal answers launch the same kernels on the same addresses, whatever those
        hold; another answer gets a graph of its own, so there should be few. Inside of the graph
        `init_forward_metadata` follows with `batch.planned` set, whose bounds are those of the largest batch
        and which has no host lengths: there it uses what was planned, and does device work only. Backends
        with device_metadata have nothing to plan; others are asked only if they declare plans_outside.
        """
        return None

    @abstractmethod
    def forward(self, q: Tensor, k: Tensor, v: Tensor, kv: LayerKV, batch: ForwardBatch) -> Tensor:
        """q [T, Hq, D], k and v [T, Hkv, D] -> [T, Hq * D] in q.dtype.

        k and v of the new tokens are already in `kv` at batch.slots; they are passed for backends that would
        rather read them directly. Query head h reads KV head h // (Hq // Hkv).
        """

    @classmethod
    def workspace_bytes(cls, config: Any, sizes: AttentionSizes, children: Sequence[int]) -> int:
        """Device memory that it works in at most, beside q, k, v and the result; for the memory plan.
        children: what those of a composite answered."""
        return sum(children)

    @classmethod
    def facts(cls, children: Mapping[str, BackendFacts]) -> BackendFacts:
        """The class-level facts, without building anything. A composite (its yaml nests backends) combines
        its children's; a plain backend ignores the empty mapping."""
        return BackendFacts(
            f"{cls.__module__}.{cls.__name__}",
            cls.host_lens,
            cls.tree_mask,
            cls.device_metadata,
            cls.page_sizes,
            cls.dtypes,
            cls.max_verify_width,
            cls.step_kernels,
            cls.plans_outside,
            cls.own_products,
        )

    def children(self) -> tuple[AttentionBackend, ...]:
        """The parts of a composite; a plain backend has none."""
        return ()


def facts_of(backend: AttentionBackend) -> BackendFacts:
    """The facts of an instance, which a composite computed from its children."""
    return BackendFacts(
        f"{type(backend).__module__}.{type(backend).__name__}",
        backend.host_lens,
        backend.tree_mask,
        backend.device_metadata,
        backend.page_sizes,
        backend.dtypes,
        backend.max_verify_width,
        backend.step_kernels,
        backend.plans_outside,
        backend.own_products,
    )


def host_lens_of(backend: object) -> HostLens:
    """What a backend instance reads on the host; one that does not declare it counts as EXACT."""
    declared = getattr(backend, "host_lens", HostLens.EXACT)
    return declared if isinstance(declared, HostLens) else HostLens.EXACT
