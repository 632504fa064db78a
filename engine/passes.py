"""How a forward pass of the target is begun and driven: the seams for prefill graphs and two-batch overlap.

Knows models and attention by their contracts; nothing of requests, sampling or heads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from backends.base import AttentionBackend, ModelOps
from engine.batch import ForwardBatch, LayerKV
from engine.models.base import CausalLM, Pass, drive


class Passes(ABC):
    """Begins passes of one model over one KV pool."""

    @abstractmethod
    def begin(self, batch: ForwardBatch, ops: ModelOps, lane: int = 0) -> Pass:
        """A pass over `batch`, see CausalLM.run_pass. lane: passes of different lanes may be in progress at
        once, those of one lane follow each other."""


class PlainPasses(Passes):
    """The model's own."""

    def __init__(self, model: CausalLM, kv: Sequence[LayerKV]) -> None:
        self._model = model
        self._kv = kv

    def begin(self, batch: ForwardBatch, ops: ModelOps, lane: int = 0) -> Pass:
        return self._model.run_pass(batch, ops, self._kv)


class Driver(ABC):
    """Runs a pass from begin to end."""

    @abstractmethod
    def run(self, batch: ForwardBatch) -> tuple[Tensor, Tensor | None]:
        """(hidden, aux) as in CausalLM.run_pass; prepares attention first."""

    @abstractmethod
    def attentions(self) -> tuple[AttentionBackend, ...]:
        """Of each lane that it begins passes in."""


class OneBatch(Driver):
    """All requests in one pass."""

    def __init__(self, begins: Passes, attention: AttentionBackend) -> None:
        self._begins = begins
        self._attention = attention

    def run(self, batch: ForwardBatch) -> tuple[Tensor, Tensor | None]:
        self._attention.init_forward_metadata(batch)
        return drive(self._begins.begin(batch, self._attention.ops), self._attention, batch)

    def attentions(self) -> tuple[AttentionBackend, ...]:
        return (self._attention,)
