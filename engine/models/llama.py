"""The Llama family of decoders (Llama, SmolLM2, Mistral, Qwen2, Qwen3) over the attention contract.

Knows nothing of files, scheduling or the kind of attention it is given.
Legend: T tokens of the pass, H hidden, Hq and Hkv heads, D head size, F inner size of the MLP, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backends.base import ModelOps
from engine.batch import ForwardBatch, KVGroup, KVLayout, LayerKV
from engine.models.base import AttentionCall, CausalLM, Pass
from engine.models.linear import Linear
from engine.models.rope import rope_tables
from engine.models.shape import ModelShape

OVERSHOOT = 64  # positions past the context that a late step may touch before its result is dropped


@dataclass(frozen=True)
class LayerWeights:
    """Norms [H]; q_norm and k_norm [D] or None; qkv: H -> (Hq + 2 Hkv) D; gate_up: H -> 2F, gate first."""

    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class LlamaWeights:
    """embed [V, H] in the compute dtype; final_norm [H]; head: H -> V (the same matrix when tied)."""

    embed: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Linear


class DecoderLayer:
    """One layer in three parts, so that a caller may put graphs or a second batch between them.

    The residual stream travels beside the hidden states: a layer's input is hidden + residual.
    """

    def __init__(self, shape: ModelShape, weights: LayerWeights, cos: Tensor, sin: Tensor) -> None:
        self._weights = weights
        self._cos, self._sin = cos, sin
        self._eps = shape.rms_eps
        self._split = [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads]
        self._all_heads, self._head_dim = sum(self._split), shape.head_dim

    def pre_attention(
        self, hidden: Tensor, residual: Tensor | None, kv: LayerKV, batch: ForwardBatch, ops: ModelOps
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """hidden, residual [T, H] -> q [T, Hq, D], k, v [T, Hkv, D], residual [T, H].

        residual is None before the first layer. q and k are rotated; k and v are written to `kv`. v is a view
        of the merged projection.
        """
        weights = self._weights
        qkv, residual = ops.norm_linear(hidden, residual, weights.input_norm, self._eps, weights.qkv)
        heads = qkv.view(hidden.shape[0], self._all_heads, self._head_dim)
        q, k, v = torch.split_with_sizes(heads, self._split, dim=1)
        if weights.q_norm is not None and weights.k_norm is not None:
            q = ops.rms_norm(q, weights.q_norm, self._eps)
            k = ops.rms_norm(k, weights.k_norm, self._eps)
        q, k = ops.rope_store(q, k, v, self._cos, self._sin, kv, batch)
        return q, k, v, residual

    def post_attention(self, attended: Tensor, residual: Tensor, ops: ModelOps) -> tuple[Tensor, Tensor]:
        """attended [T, Hq * D], residual [T, H] -> hidden, residual [T, H]."""
        weights = self._weights
        mixed = ops.linear(attended, weights.output)
        gated, residual = ops.norm_gated(mixed, residual, weights.post_norm, self._eps, weights.gate_up)
        return ops.linear(gated, weights.down), residual


class LlamaModel(CausalLM):
    """A Llama-family decoder on one device."""

    def __init__(self, shape: ModelShape, weights: LlamaWeights, aux_layers: Sequence[int] = ()) -> None:
        self.shape = shape
        self.device, self.dtype = weights.embed.device, weights.embed.dtype
        group = KVGroup(shape.num_layers, shape.num_kv_heads, shape.head_dim)
        self.kv_layout = KVLayout((group,), str(self.dtype).removeprefix("torch."))
        self.aux_layers = tuple(aux_layers)
        self.weights = weights
        cos, sin = rope_tables(shape, shape.max_positions + OVERSHOOT, str(self.device))
        self.layers = [DecoderLayer(shape, layer, cos, sin) for layer in weights.layers]

    def embedding(self) -> Tensor:
        return self.weights.embed

    def collect(self, layers: Sequence[int]) -> None:
        self.aux_layers = tuple(layers)

    def run_pass(self, batch: ForwardBatch, ops: ModelOps, kv: Sequence[LayerKV]) -> Pass:
        hidden, residual = ops.rows(self.weights.embed, batch.input_ids), None
        aux: list[Tensor] = []
        for index, (layer, layer_kv) in enumerate(zip(self.layers, kv, strict=True)):
            q, k, v, residual = layer.pre_attention(hidden, residual, layer_kv, batch, ops)
            if index in self.aux_layers:  # what went in: no operation writes over a residual stream
                aux.append(residual)
            attended = yield AttentionCall(q, k, v, layer_kv)
            hidden, residual = layer.post_attention(attended, residual, ops)
        added = None
        if len(self.layers) in self.aux_layers:
            aux.append(hidden)
            added = residual
        states = ops.beside(aux, added) if aux else None  # before the norm, which may write over `hidden`
        return self.finish(hidden, residual, ops), states

    def finish(self, hidden: Tensor, residual: Tensor | None, ops: ModelOps) -> Tensor:
        """The final norm of hidden + residual, [T, H]."""
        norm, eps = self.weights.final_norm, self.shape.rms_eps
        if residual is None:
            return ops.rms_norm(hidden, norm, eps)
        return ops.add_rms_norm(hidden, residual, norm, eps)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.weights.head(hidden).float()

    def logits_by(self, hidden: Tensor, ops: ModelOps) -> Tensor:
        return ops.scores(hidden, self.weights.head)

    def nbytes(self) -> int:
        """Bytes of all matrices, copies for speed included; what head and embedding share counts once."""
        weights = self.weights
        head = 0 if getattr(weights.head, "weight", None) is weights.embed else weights.head.nbytes()
        linears = sum(
            part.nbytes()
            for layer in weights.layers
            for part in (layer.qkv, layer.output, layer.gate_up, layer.down)
        )
        return weights.embed.nbytes + head + linears
