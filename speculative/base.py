"""The draft contract, and its null object: decoding without speculation.

Importable without torch. Knows no concrete algorithm and nothing of the scheduler.
Legend: B requests, W width (drafts + 1), T tokens of a pass, R table rows, C positions a row, H hidden size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from engine.batch import DraftTree, KVLayout, LayerKV
from engine.lazy import lazy_import
from speculative.views import DraftView, Observed, PrefillSeen
from speculative.width import FixedWidth, StepCosts, WidthPolicy

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from backends.base import AttentionBackend
    from engine.models.shape import ModelShape
    from speculative import tree as trees
else:
    trees = lazy_import("speculative.tree")


@dataclass(frozen=True)
class SpecPlan:
    """What an algorithm asks of the engine, known from its Config before anything is built.

    width: drafts + 1 of its widest step. draft_slots: KV slots past the bound that its own chain forwards
    write. tree: whether drafts branch. draft, draft_extend: whether it has forwards of its own that draft,
    and that follow the accepted tokens. successor_keys: whether its KV at i depends on token i + 1 (prefix
    cache keys). scratch: KV slots a table row in its pool, outside the pages. simulated: accept length to
    force. depth: drafts on the longest path, None: all of them (a chain). measures: widths whose step cost
    its width policy wants measured, none: it asks for no costs. seeded: whether sampled output with a seed is
    that of plain decoding (not so under the ratio test).
    """

    width: int = 1
    draft_slots: int = 0
    tree: bool = False
    draft: bool = False
    draft_extend: bool = False
    successor_keys: bool = False
    scratch: int = 0
    simulated: float | None = None
    depth: int | None = None
    measures: tuple[int, ...] = ()
    seeded: bool = True

    @property
    def longest_run(self) -> int:
        """Most tokens that a step emits for a request."""
        return self.width if self.depth is None else self.depth + 1


@dataclass(frozen=True)
class DraftTarget:
    """The target model as a draft model sees it while it is loaded.

    name: the choice of the model group. embedding: its matrix [V, H]. logits: [N, H] -> fp32 [N, V]. weights:
    "float32", "bfloat16", "float16", "int4". device: "cpu", "cuda:0".
    """

    name: str
    shape: ModelShape
    embedding: Callable[[], Tensor]
    logits: Callable[[Tensor], Tensor]
    weights: str
    device: str


class DraftModel(ABC):
    """A draft model with KV of its own, as the engine sees it: what to allocate and what to collect.

    aux_layers: layers of the target whose inputs it reads (0: the embedding; num_layers: the last output).
    """

    kv_layout: KVLayout
    num_heads: int
    num_kv_heads: int
    head_dim: int
    aux_layers: tuple[int, ...]

    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of its weights."""


@dataclass(frozen=True)
class DraftMemory:
    """Bytes that a draft model takes, from shapes alone: its weights, its KV a token, its relay a table
    row.
    """

    weights: int
    kv_per_token: int
    relay_per_row: int


def _uncounted(metric: str) -> None:
    """Nobody keeps counts."""


@dataclass(frozen=True)
class DraftHost:
    """What the engine brings to a drafter.

    rows, context, page_size: of the request table. kernels: "torch" or "triton", what the target's attention
    runs on. model, kv, draft, draft_extend: None or empty where the plan has no such thing. first_scratch:
    first slot of the scratch behind the pages of `kv`; row r owns plan.scratch slots from first_scratch + r *
    plan.scratch on. encode: text -> token ids of the target's vocabulary. count: adds one to the engine's
    metric of that name. early: as ModelOps.early says of the target's operations.
    """

    device: torch.device
    rows: int
    context: int
    page_size: int
    vocab_size: int
    kernels: str
    encode: Callable[[str], list[int]]
    model: DraftModel | None = None
    kv: Sequence[LayerKV] = ()
    first_scratch: int = 0
    draft: AttentionBackend | None = None
    draft_extend: AttentionBackend | None = None
    count: Callable[[str], None] = _uncounted
    early: bool = False


@dataclass(frozen=True)
class RelayField:
    """A value that a drafter keeps per request between steps: one device tensor [R, *shape] in the table."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # "int32", "float32", "bfloat16", ...


class Speculator(ABC):
    """Proposes drafts and learns from their verification. All of it on the device: nothing reads a value
    back.
    """

    reads_cpu_seq_lens: ClassVar[bool] = True  # opt out with a one-line reason

    @dataclass(frozen=True)
    class Config:
        """Options of the algorithm's yaml; subclasses replace it."""

    plan: SpecPlan

    def __init__(self, config: Any, host: DraftHost) -> None:
        self.plan = self.planned(config)

    @classmethod
    def planned(cls, config: Any) -> SpecPlan:
        """What `config` asks for; rules, plans and factories ask before anything is built."""
        return SpecPlan()

    @classmethod
    def target_problems(cls, config: Any, name: str, target: ModelShape) -> list[str]:
        """Why it cannot draft for this target (`name` as a user writes it), as far as small files tell."""
        return []

    @classmethod
    def memory(cls, config: Any, target: ModelShape, weights: str) -> DraftMemory | None:
        """What the draft model will take beside a target of this shape; None: none, or not known yet."""
        return None

    @classmethod
    def files(cls, config: Any, target: ModelShape) -> tuple[Path, ...]:
        """The files that its drafts come from, for the record of a run; they can be read by then."""
        return ()

    @classmethod
    def load(cls, config: Any, target: DraftTarget) -> DraftModel | None:
        """The draft model, or None for algorithms without one. UserError when it does not fit the target."""
        return None

    def relay_layout(self) -> tuple[RelayField, ...]:
        """The per-request values to allocate in the table."""
        return ()

    def width_policy(self, costs: StepCosts | None) -> WidthPolicy:
        """What chooses the width of each batch. costs: measured step costs, None where nobody measured."""
        return FixedWidth(self.plan.width)

    def expected_acceptance(self) -> tuple[float, ...] | None:
        """Share of steps in which the draft at each depth should be accepted, as the makers of the draft
        measured it; None where nobody did."""
        return None

    @abstractmethod
    def propose(self, view: DraftView) -> DraftTree:
        """view.width - 1 drafts for each of B requests; node 0 holds tokens[row, seq_len]."""

    def observe(self, view: DraftView, seen: Observed) -> None:
        """Called after commit, once the results are on their way; view.seq_lens are the lengths before the
        pass."""
        return None

    def prefill(self, view: DraftView, seen: PrefillSeen) -> None:
        """Called after each prefill chunk of the target, its sampled tokens committed."""
        return None


class NoSpeculation(Speculator):
    """Plain decoding: a verify step with zero drafts."""

    reads_cpu_seq_lens = False  # reads one token per row, on the device

    def propose(self, view: DraftView) -> DraftTree:
        return self.alone(view)

    @staticmethod
    def alone(view: DraftView) -> DraftTree:
        """The root without drafts: a step of width 1."""
        return trees.chain(view.root().unsqueeze(1))
