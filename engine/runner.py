"""Runs a model over a ForwardBatch: layers, then the head. Graphs of a forward wrap it.

Knows the model, its attention and its KV pool; nothing of requests or of sampling.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backends.base import AttentionBackend
from engine.batch import ForwardBatch
from engine.kv_pool import KVPool
from engine.models.base import CausalLM
from engine.passes import Driver


@dataclass(frozen=True)
class ForwardResult:
    """hidden: [T, H] final states; aux: [T, n * H] inputs of the model's collected layers, if there are any;
    logits: [N, V] of batch.logit_rows (all T when None), as CausalLM.logits_by has them."""

    hidden: Tensor
    aux: Tensor | None
    logits: Tensor


class ModelRunner:
    """The target model on one device. driver: runs its layers, over this attention and this pool."""

    def __init__(self, model: CausalLM, attention: AttentionBackend, pool: KVPool, driver: Driver) -> None:
        self.model = model
        self.attention = attention
        self.pool = pool
        self.driver = driver

    def forward(self, batch: ForwardBatch) -> ForwardResult:
        """One pass; writes the KV of its tokens."""
        hidden, aux = self.driver.run(batch)
        rows = batch.logit_rows
        picked = hidden if rows is None else hidden.index_select(0, rows)
        if (
            picked.shape[0] == 0
        ):  # a chunk that ends no prompt, or an idle pass: some matrix products refuse 0 rows
            empty = hidden.new_zeros((0, self.model.shape.vocab_size), dtype=torch.float32)
            return ForwardResult(hidden, aux, empty)
        return ForwardResult(hidden, aux, self.model.logits_by(picked, self.attention.ops))
