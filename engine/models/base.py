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
from engine.errors import UserError
from engine.models.shape import ModelShape

if TYPE_CHECKING:
    from torch import Tensor

    from engine.text.tokenizer import Tokenizer


class CausalLM(ABC):
    """A decoder-only language model on one device."""

    shape: ModelShape
    kv_layout: KVLayout
    aux_layers: tuple[int, ...] = ()

    @abstractmethod
    def forward_with_aux(
        self, batch: ForwardBatch, attention: AttentionBackend, kv: Sequence[LayerKV]
    ) -> tuple[Tensor, Tensor | None]:
        """Final normalised hidden states [T, H] of all tokens of the pass, and the inputs of the collected
        layers side by side [T, n * H] (None when none are collected); writes the tokens' KV into `kv`.

        The caller has run attention.init_forward_metadata(batch).
        """

    def collect(self, layers: Sequence[int]) -> None:
        """Return the inputs of these layers from every pass on: 0 is the embedding, num_layers the output of
        the last layer. UserError from models that cannot."""
        if layers:
            raise UserError(
                f"{self.shape.architecture} does not show the states of its layers, which the draft model "
                "of spec= reads; choose spec=ngram or spec=none"
            )

    def embed(self, input_ids: Tensor) -> Tensor:
        """int64 [T] -> [T, H], what a draft model shares. UserError from models without embeddings."""
        raise UserError(f"{self.shape.architecture} has no embeddings that a draft model could share")

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
