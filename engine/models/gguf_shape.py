"""From GGUF metadata to a ModelShape, and from GGUF tensor names to ours. Free of torch, reads no weights
but the few rope factors. Knows the architectures that llama.cpp calls llama, qwen2 and qwen3.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from engine.errors import UserError
from engine.models.gguf_file import GgufFile
from engine.models.names import EMBED, FINAL_NORM, HEAD, layer_prefix
from engine.models.scaling import check_scaling
from engine.models.shape import ModelShape

ARCHITECTURES = ("llama", "qwen2", "qwen3")
ROPE_FACTORS = "rope_freqs.weight"
FOUR_BIT = (2, 3, 12)  # ggml numbers of Q4_0, Q4_1 and Q4_K: 4-bit codes in groups of 32
_TOP = {"token_embd.weight": EMBED, "output_norm.weight": FINAL_NORM, "output.weight": HEAD}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def tensor_name(name: str) -> str:
    """Our name of a GGUF tensor; an unknown one comes back as it is, for the strict check to report."""
    match = _LAYER_NAME.fullmatch(name)
    if match and match[2] in _LAYER:
        return f"{layer_prefix(int(match[1]))}{_LAYER[match[2]]}.{match[3]}"
    return _TOP.get(name, name)


def shape_of(file: GgufFile) -> ModelShape:
    """The numbers of the model in a GGUF file. UserError: unknown architecture, absent keys."""
    architecture = file.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UserError(
            f"{file.path} holds the architecture {architecture!r}, which is not supported; "
            f"supported are {', '.join(ARCHITECTURES)}"
        )
    keys = _Keys(file, str(architecture))
    hidden, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    head_dim = keys.integer("attention.key_length", hidden // heads)
    _refuse_odd_sizes(keys, head_dim)
    return ModelShape(
        architecture=str(architecture),
        vocab_size=_embedding_rows(file),
        hidden_size=hidden,
        num_layers=keys.integer("block_count"),
        num_heads=heads,
        num_kv_heads=keys.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate_size=keys.integer("feed_forward_length"),
        max_positions=keys.integer("context_length"),
        rms_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope_theta=keys.number("rope.freq_base", 10000.0),
        rope_scaling=_rope_scaling(file, keys),
        tied="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        o_bias="blk.0.attn_output.bias" in file.tensors,
    )


def packs_int4(file: GgufFile) -> bool:
    """Whether most of the linear weights are 4-bit blocks."""
    linears = [t for t in file.tensors.values() if t.name.startswith("blk.") and len(t.shape) == 2]
    packed = [t for t in linears if t.kind in FOUR_BIT]
    return 2 * len(packed) > len(linears)


class _Keys:
    """Metadata of one architecture, typed, with the file's name in every complaint."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self.file, self._prefix = file, architecture + "."

    def get(self, key: str, default: Any = None) -> Any:
        value = self.file.get(self._prefix + key, default)
        if value is None:
            raise UserError(f"{self.file.path} lacks the GGUF metadata {self._prefix}{key}")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if isinstance(value, list):  # one number a layer
            if len(set(value)) != 1:
                raise UserError(
                    f"{self.file.path}: {self._prefix}{key} differs by layer, which is not supported"
                )
            value = value[0]
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        return float(self.get(key, default))


def _refuse_odd_sizes(keys: _Keys, head_dim: int) -> None:
    rotated = keys.integer("rope.dimension_count", head_dim)
    if rotated != head_dim or keys.integer("attention.value_length", head_dim) != head_dim:
        raise UserError(
            f"{keys.file.path}: heads of {head_dim} of which {rotated} values are rotated, "
            "or whose values have another size, are not supported"
        )
    if keys.integer("expert_count", 0):
        raise UserError(f"{keys.file.path} is a mixture of experts, which is not supported")


def _embedding_rows(file: GgufFile) -> int:
    found = file.tensors.get("token_embd.weight")
    if found is None:
        raise UserError(f"{file.path} does not hold the tensor token_embd.weight")
    return found.shape[0]


def _rope_scaling(file: GgufFile, keys: _Keys) -> dict[str, object]:
    if ROPE_FACTORS in file.tensors:
        factors = file.data(file.tensors[ROPE_FACTORS]).view(np.float32)
        return {"rope_type": "factors", "factors": [float(value) for value in factors.reshape(-1)]}
    kind = str(keys.get("rope.scaling.type", "none"))
    if kind == "none":
        return {}
    scaling: dict[str, object] = {
        "rope_type": kind,
        "factor": keys.number("rope.scaling.factor", 1.0),
        "original_max_position_embeddings": keys.integer(
            "rope.scaling.original_context_length", keys.integer("context_length")
        ),
    }
    check_scaling(scaling, str(file.path))
    return scaling
