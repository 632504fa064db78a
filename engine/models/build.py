"""Builds a Llama-family model out of a weight reader: strict check, merged projections, one tensor at a time.

Knows no file format; the reader brings the tensors, the shape says which must be there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.errors import UserError
from engine.models.linear import Int4Linear, Linear, dense_linear, fits_int4, merge_blocks
from engine.models.llama import LayerWeights, LlamaModel, LlamaWeights
from engine.models.names import EMBED, FINAL_NORM, HEAD, check_tensors, layer_prefix
from engine.models.shape import ModelShape
from engine.models.source import Progress, compute_dtype, silent
from engine.models.weights import WeightReader

# A bfloat16 copy beside int4 weights makes prefill and batches of more than four rows about twice as fast;
# past this size of all copies together, memory matters more.
DENSE_COPY_BYTES = 512 << 20


def build_llama(
    shape: ModelShape, reader: WeightReader, dtype: str, device: str, progress: Progress = silent
) -> LlamaModel:
    """The model of `shape` with the reader's weights in `dtype` ("float32", "bfloat16", "float16", "int4").

    Raises UserError when the reader does not hold exactly the tensors of the shape.
    """
    check_tensors(shape, reader.shapes, reader.where)
    builder = _Builder(shape, reader, dtype, device)
    layers = []
    for index in range(shape.num_layers):
        progress("loading layers", index, shape.num_layers)
        layers.append(builder.layer(index))
    progress("loading layers", shape.num_layers, shape.num_layers)
    embed = builder.tensor(EMBED)
    weights = LlamaWeights(embed, tuple(layers), builder.tensor(FINAL_NORM), builder.head(embed))
    return LlamaModel(shape, weights)


class _Builder:
    """Reads, converts and merges tensors."""

    def __init__(self, shape: ModelShape, reader: WeightReader, dtype: str, device: str) -> None:
        self._shape, self._reader, self._device = shape, reader, torch.device(device)
        self._dtype: torch.dtype = getattr(torch, compute_dtype(dtype))
        self._int4 = dtype == "int4"
        self._keep_dense = 2 * _linear_parameters(shape) <= DENSE_COPY_BYTES

    def tensor(self, name: str) -> Tensor:
        return self._reader.read(name).to(self._device, self._dtype).contiguous()

    def head(self, embed: Tensor) -> Linear:
        return dense_linear(self._head_matrix(embed))

    def _head_matrix(self, embed: Tensor) -> Tensor:
        if not self._shape.tied:
            return self.tensor(HEAD)
        if HEAD in self._reader.shapes and not torch.equal(self.tensor(HEAD), embed):
            raise UserError(
                f"{self._reader.where} says that the head is the embedding, yet holds another {HEAD}; "
                "set tie_word_embeddings to false in its config.json"
            )
        return embed

    def layer(self, index: int) -> LayerWeights:
        at, shape = layer_prefix(index), self._shape
        attention = at + "self_attn."
        qkv = [attention + part for part in ("q_proj", "k_proj", "v_proj")]
        return LayerWeights(
            input_norm=self.tensor(at + "input_layernorm.weight"),
            qkv=self._linear(qkv, shape.qkv_bias),
            q_norm=self.tensor(attention + "q_norm.weight") if shape.qk_norm else None,
            k_norm=self.tensor(attention + "k_norm.weight") if shape.qk_norm else None,
            output=self._linear([attention + "o_proj"], shape.o_bias),
            post_norm=self.tensor(at + "post_attention_layernorm.weight"),
            gate_up=self._linear([at + "mlp.gate_proj", at + "mlp.up_proj"], False),
            down=self._linear([at + "mlp.down_proj"], False),
        )

    def _linear(self, parts: Sequence[str], has_bias: bool) -> Linear:
        bias = torch.cat([self.tensor(part + ".bias") for part in parts]) if has_bias else None
        if self._int4:
            packed = self._int4_linear(parts, bias)
            if packed is not None:
                return packed
        tensors = [self.tensor(part + ".weight") for part in parts]
        return dense_linear(torch.cat(tensors) if len(tensors) > 1 else tensors[0], bias)

    def _int4_linear(self, parts: Sequence[str], bias: Tensor | None) -> Linear | None:
        """None where some part is stored with more than 4 bits: it keeps them, in bfloat16."""
        blocks = [self._reader.q4(part + ".weight") for part in parts]
        whole = [block for block in blocks if block is not None]
        if len(whole) < len(blocks):
            return None
        merged = merge_blocks(whole) if len(whole) > 1 else whole[0]
        return Int4Linear(merged, bias, keep_dense=self._keep_dense) if fits_int4(merged) else None


def _linear_parameters(shape: ModelShape) -> int:
    attention = shape.hidden_size * (2 * shape.q_size + 2 * shape.kv_size)
    return shape.num_layers * (attention + 3 * shape.hidden_size * shape.intermediate_size)
