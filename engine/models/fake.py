"""A model without arithmetic: the next token is a hash of the whole prefix, read back from the KV pool.

It costs next to nothing, so what remains is the engine; and since every prefix token is read through the page
table, a lost, shared or stale page changes the output. For tests and for measuring host time, not for text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from backends.base import ModelOps
from engine.batch import ForwardBatch, KVGroup, KVLayout, LayerKV, Mode
from engine.models.base import CausalLM, Pass
from engine.models.shape import ModelShape

# All products stay under 2^53, where float64 is exact: token < 2^17, weight < 2^16, at most 2^17 positions.
_WEIGHT_MODULUS = 65521
_DIGEST_MODULUS = 2147483647


class FakeLM(CausalLM):
    """digest(prefix) = sum of (token + 1) * weight(position); logits[v] = hash(digest, v) in [0, spread)."""

    def __init__(self, shape: ModelShape, device: torch.device, spread: float = 12.0) -> None:
        self.shape = shape
        self.kv_layout = KVLayout((KVGroup(1, 1, 1),), "float32")
        self._spread = spread
        self._vocab = torch.arange(shape.vocab_size, dtype=torch.int64, device=device) * 2654435761
        self._all_positions = torch.arange(shape.max_positions + 64, dtype=torch.int64, device=device)

    def run_pass(self, batch: ForwardBatch, ops: ModelOps, kv: Sequence[LayerKV]) -> Pass:
        """It never stops: it reads the pool itself, by the page table and the lengths."""
        yield from ()
        return self._digest(batch, kv), None

    def _digest(self, batch: ForwardBatch, kv: Sequence[LayerKV]) -> Tensor:
        """float64 [T, 1]."""
        pool = kv[0].k.view(-1)
        ids = batch.input_ids
        pool.index_copy_(0, batch.slots, ids.to(torch.float32))
        if batch.size == 0:
            return ids.new_zeros((0, 1), dtype=torch.float64)
        own = (ids + 1).double() * _weight(batch.positions)
        prefix = self._prefix(batch, pool)
        digest = (
            self._verify(batch, own, prefix) if batch.mode is Mode.VERIFY else _extend(batch, own, prefix)
        )
        return torch.remainder(digest, _DIGEST_MODULUS).unsqueeze(1)

    def _prefix(self, batch: ForwardBatch, pool: Tensor) -> Tensor:
        """Digest of each request's tokens in the pool: float64 [B]."""
        positions = self._all_positions[: max(1, batch.seq_lens.max_bound)]
        page_size = batch.page_size
        pages = batch.page_table[batch.rows][:, positions // page_size].long()
        tokens = pool[pages * page_size + positions % page_size].double()
        terms = (tokens + 1) * _weight(positions)
        seen = positions < batch.seq_lens.device.unsqueeze(1)
        return torch.where(seen, terms, 0.0).sum(dim=1)

    @staticmethod
    def _verify(batch: ForwardBatch, own: Tensor, prefix: Tensor) -> Tensor:
        width = batch.width
        if batch.tree_mask is None:
            new = own.view(-1, width).cumsum(dim=1)
        else:
            new = (batch.tree_mask.double() @ own.view(-1, width, 1)).squeeze(2)
        return (prefix.unsqueeze(1) + new).view(-1)

    def logits(self, hidden: Tensor) -> Tensor:
        mixed = hidden.long() * 40503 + self._vocab
        mixed = (mixed ^ (mixed >> 15)) * 2246822519 & 0x7FFFFFFF
        mixed = (mixed ^ (mixed >> 13)) * 3266489917 & 0x7FFFFFFF
        return ((mixed ^ (mixed >> 16)) & 0xFFFFFF).float() * (self._spread / 0x1000000)


def _weight(positions: Tensor) -> Tensor:
    return ((positions * 48271 + 12345) % _WEIGHT_MODULUS).double()


def _extend(batch: ForwardBatch, own: Tensor, prefix: Tensor) -> Tensor:
    running = torch.cat((own.new_zeros(1), own.cumsum(dim=0)))
    start = running[batch.query_start[:-1].long()]
    lens = batch.query_start.diff().long()
    before = torch.repeat_interleave(prefix - start, lens, output_size=own.numel())
    return running[1:] + before
