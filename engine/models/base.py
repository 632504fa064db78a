"""The model contract: a decoder that computes hidden states and logits over a ForwardBatch.

Knows nothing of scheduling, sampling or the kind of attention it is given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from backends.base import AttentionBackend
from engine.batch import ForwardBatch, KVLayout, LayerKV
from engine.models.shape import ModelShape

if TYPE_CHECKING:
    from torch import Tensor

    from engine.text.tokenizer import Tokenizer


class CausalLM(ABC):
    """A decoder-only language model on one device."""

    shape: ModelShape
    kv_layout: KVLayout

    @abstractmethod
    def forward(self, batch: ForwardBatch, attention: AttentionBackend, kv: Sequence[LayerKV]) -> Tensor:
        """Final normalised hidden states [T, H] of all tokens of the pass; writes their KV into `kv`.

        The caller has run attention.init_forward_metadata(batch).
        """

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """[N, H] -> fp32 [N, V]."""


@dataclass(frozen=True)
class LoadedModel:
    """A model with what belongs to it. files: name -> SHA-256 of every weight file read."""

    model: CausalLM
    tokenizer: Tokenizer
    eos_ids: tuple[int, ...]
    files: Mapping[str, str] = field(default_factory=dict)
