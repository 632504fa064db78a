"""A backend without pages or masks to get wrong: one request, plain loops over heads, for tests of models."""

from __future__ import annotations

import torch
from torch import Tensor

from backends.base import AttentionBackend, ModelOps
from engine.batch import ForwardBatch, LayerKV, Mode, SeqLens
from engine.models.shape import ModelShape


class PlainOps(ModelOps):
    """The definitions, written out."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = x + residual
        return self.rms_norm(total, weight, eps), total

    def rope_store(
        self, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, kv: LayerKV, batch: ForwardBatch
    ) -> tuple[Tensor, Tensor]:
        cos, sin = (table[batch.positions].unsqueeze(1).to(q.dtype) for table in (cos, sin))
        half = q.shape[-1] // 2

        def turn(x: Tensor) -> Tensor:
            return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin

        q, k = turn(q), turn(k)
        kv.k[batch.slots], kv.v[batch.slots] = k, v
        return q, k

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return gate * torch.sigmoid(gate) * up


class DenseAttention(AttentionBackend):
    """Causal attention of one request over KV slots 1..n in order."""

    def __init__(self, head_dim: int) -> None:
        self.ops = PlainOps()
        self._scale = head_dim**-0.5

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        return None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, kv: LayerKV, batch: ForwardBatch) -> Tensor:
        if not batch.size:
            return q.flatten(1)
        known = batch.seq_lens.bound[0] + batch.query_lens[0]
        groups = q.shape[1] // k.shape[1]
        keys = kv.k[1 : known + 1].repeat_interleave(groups, 1)
        values = kv.v[1 : known + 1].repeat_interleave(groups, 1)
        scores = torch.einsum("thd,shd->hts", q, keys) * self._scale
        hidden = torch.arange(known)[None] > batch.positions[:, None]
        weights = scores.masked_fill(hidden, float("-inf")).float().softmax(-1).to(q.dtype)
        return torch.einsum("hts,shd->thd", weights, values).flatten(1)


def one_request(ids: Tensor, start: int) -> ForwardBatch:
    """Tokens of one request in row 1, its KV at slots 1, 2, ... (page size 1)."""
    count = len(ids)
    positions = torch.arange(start, start + count)
    lens = SeqLens(torch.tensor([start], dtype=torch.int32), (start,))
    table = torch.arange(1, 4097, dtype=torch.int32).repeat(2, 1)
    query_start = torch.tensor([0, count], dtype=torch.int32)
    return ForwardBatch(
        Mode.EXTEND, torch.tensor([1]), ids, positions, positions + 1, lens, query_start, (count,), table
    )


def idle() -> ForwardBatch:
    """A pass without requests."""
    none = torch.zeros(0, dtype=torch.int64)
    lens = SeqLens(torch.zeros(0, dtype=torch.int32), ())
    start, table = torch.zeros(1, dtype=torch.int32), torch.zeros(2, 1, dtype=torch.int32)
    return ForwardBatch(Mode.IDLE, none, none, none, none, lens, start, (), table)


def empty_kv(shape: ModelShape, positions: int, dtype: torch.dtype = torch.float32) -> list[LayerKV]:
    size = (positions + 1, shape.num_kv_heads, shape.head_dim)
    layers = range(shape.num_layers)
    return [LayerKV(i, torch.zeros(size, dtype=dtype), torch.zeros(size, dtype=dtype)) for i in layers]


class DenseLoop:
    """Runs a model on one request, pass by pass."""

    def __init__(self, model: object, positions: int = 512) -> None:
        self.model = model
        self.kv = empty_kv(model.shape, positions, model.dtype)
        self.attention = DenseAttention(model.shape.head_dim)
        self.length = 0

    def logits(self, ids: list[int]) -> Tensor:
        """fp32 [len(ids), V] after the tokens seen so far."""
        batch = one_request(torch.tensor(ids), self.length)
        with torch.inference_mode():
            hidden, _ = self.model.forward_with_aux(batch, self.attention, self.kv)
            self.length += len(ids)
            return self.model.logits(hidden)

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        found = [int(self.logits(prompt)[-1].argmax())]
        while len(found) < count:
            found.append(int(self.logits(found[-1:])[-1].argmax()))
        return found
