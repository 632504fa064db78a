"""The draft contract, and its null object: decoding without speculation.

Importable without torch. Knows no concrete algorithm and nothing of the scheduler.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from engine.batch import ROOT, DraftTree, SeqLens
from engine.lazy import lazy_import

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from backends.base import AttentionBackend
else:
    torch = lazy_import("torch")


@dataclass(frozen=True)
class RelayField:
    """A value that a drafter keeps per request between steps: one device tensor [R, *shape] in the table."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # "int32", "float32", "bfloat16", ...


@dataclass(frozen=True)
class DraftView:
    """What a drafter may read on the device. tokens: int32 [R, C] (known tokens of row r: seq_lens[r] + 1);
    rows: int64 [B]; seq_lens: of these rows; relay: its own declared fields, whole tables."""

    tokens: Tensor
    rows: Tensor
    seq_lens: SeqLens
    relay: dict[str, Tensor]


@dataclass(frozen=True)
class Observed:
    """What the verify pass showed. tree: what was drafted; target: int32 [B, W] the target's token after each
    node; accept_index: int32 [B, W] nodes on the accepted path, root first, -1 padded; n_accepted: int32 [B];
    hidden: [B * W, H] (or the fused auxiliary states that the drafter asked for)."""

    tree: DraftTree
    target: Tensor
    accept_index: Tensor
    n_accepted: Tensor
    hidden: Tensor


class Speculator(ABC):
    """Proposes drafts and learns from their verification. All of it on the device: nothing reads a value
    back.
    """

    reads_cpu_seq_lens: ClassVar[bool] = True  # opt out with a one-line reason
    needs_tree_mask: ClassVar[bool] = False
    uses_draft_backends: ClassVar[bool] = False  # whether draft / draft_extend slots are filled
    successor_keys: ClassVar[bool] = False  # whether its KV at i depends on token i + 1 (prefix cache keys)

    @dataclass(frozen=True)
    class Config:
        """Options of the algorithm's yaml; subclasses replace it."""

    width: int  # drafts + 1
    draft_slots: int = 0  # KV slots past the bound that its own chain forwards write

    @classmethod
    def planned_width(cls, config: Any) -> int:
        """Drafts + 1 that `config` asks for, known before anything is built; rules and plans ask."""
        return 1

    def relay_layout(self) -> tuple[RelayField, ...]:
        """The per-request values to allocate in the table."""
        return ()

    @abstractmethod
    def propose(self, view: DraftView) -> DraftTree:
        """Drafts for B requests; node 0 holds tokens[row, seq_len]."""

    def observe(self, view: DraftView, seen: Observed) -> None:
        """Called after commit; view.seq_lens are the lengths before the pass."""
        return None

    def draft_backends(self) -> tuple[AttentionBackend | None, ...]:
        """Backends of its own forwards; None where the algorithm has no such forward."""
        return ()


class NoSpeculation(Speculator):
    """Plain decoding: a verify step with zero drafts."""

    reads_cpu_seq_lens = False  # reads one token per row, on the device

    def __init__(self, config: Any = None) -> None:
        self.width = 1

    def propose(self, view: DraftView) -> DraftTree:
        root = view.tokens[view.rows, view.seq_lens.device.long()].unsqueeze(1)
        return DraftTree(root, torch.full_like(root, ROOT))
