"""The model contract: a decoder that computes hidden states and logits over a ForwardBatch.

Knows nothing of scheduling, sampling or the kind of attention it is given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from backends.base import AttentionBackend, ModelOps
from engine.batch import ForwardBatch, KVLayout, LayerKV
from engine.errors import UserError
from engine.models.shape import ModelShape

if TYPE_CHECKING:
    from torch import Tensor

    from engine.text.base import Tokenizer


@dataclass(frozen=True)
class AttentionCall:
    """Where a pass stops for attention: q [T, Hq, D], k and v [T, Hkv, D], the layer's pool, which holds k
    and v already."""

    q: Tensor
    k: Tensor
    v: Tensor
    kv: LayerKV


# A forward pass that stops where attention runs: it yields a call, is sent the result [T, Hq * D], and
# returns (hidden, aux). Whoever drives it may put a graph, a stream or another batch between two stops.
Pass = Generator[AttentionCall, "Tensor", "tuple[Tensor, Tensor | None]"]


def drive(one: Pass, attention: AttentionBackend, batch: ForwardBatch) -> tuple[Tensor, Tensor | None]:
    """Run a pass to its end, attention in line."""
    try:
        call = next(one)
        while True:
            call = one.send(attention.forward(call.q, call.k, call.v, call.kv, batch))
    except StopIteration as end:
        result: tuple[Tensor, Tensor | None] = end.value
        return result


class CausalLM(ABC):
    """A decoder-only language model on one device."""

    shape: ModelShape
    kv_layout: KVLayout
    aux_layers: tuple[int, ...] = ()

    @abstractmethod
    def run_pass(self, batch: ForwardBatch, ops: ModelOps, kv: Sequence[LayerKV]) -> Pass:
        """Final normalised hidden states [T, H] of all tokens of the pass, and the inputs of the collected
        layers side by side [T, n * H] (None when none are collected); writes the tokens' KV into `kv`.

        Between two stops everything is token-wise: it reads input_ids, positions and slots of the batch and
        nothing else of it, so that a pass may be padded with tokens that write to the padding page.
        """

    def forward_with_aux(
        self, batch: ForwardBatch, attention: AttentionBackend, kv: Sequence[LayerKV]
    ) -> tuple[Tensor, Tensor | None]:
        """What run_pass returns, its attention in line. The caller has run
        attention.init_forward_metadata(batch)."""
        return drive(self.run_pass(batch, attention.ops, kv), attention, batch)

    def collect(self, layers: Sequence[int]) -> None:
        """Return the inputs of these layers from every pass on: 0 is the embedding, num_layers the output of
        the last layer. UserError from models that cannot."""
        if layers:
            raise UserError(
                f"{self.shape.architecture} does not show the states of its layers, which the draft model "
                "of spec= reads; choose spec=ngram or spec=none"
            )

    def embedding(self) -> Tensor:
        """[V, H] by token, what a draft model shares. UserError from models without embeddings."""
        raise UserError(f"{self.shape.architecture} has no embeddings that a draft model could share")

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """[N, H] -> fp32 [N, V]."""

    def logits_by(self, hidden: Tensor, ops: ModelOps) -> Tensor:
        """The same values by the operations of a backend, in fp32 or the model's precision; models without a
        head of their own need not differ."""
        return self.logits(hidden)


@dataclass(frozen=True)
class LoadedModel:
    """A model with what belongs to it. files: name -> SHA-256 of every weight file read."""

    model: CausalLM
    tokenizer: Tokenizer
    eos_ids: tuple[int, ...]
    files: Mapping[str, str] = field(default_factory=dict)
