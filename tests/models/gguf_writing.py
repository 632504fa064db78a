"""Writes tiny GGUF files of a transformers model, the way llama.cpp's converter lays them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import quantize

_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    _, _, index, rest = stem.split(".", 3)
    return f"blk.{index}.{_LAYER[rest]}.{kind}"


def permute(values: np.ndarray, heads: int) -> np.ndarray:
    """Two halves of a head to interleaved pairs, row by row, spelled out."""
    rows = values.shape[0]
    size = rows // heads
    order = [
        h * size + half * (size // 2) + i for h in range(heads) for i in range(size // 2) for half in (0, 1)
    ]
    return values[order]


def write_gguf(
    model: Any,
    path: Path,
    kind: str,
    *,
    architecture: str = "llama",
    rename: dict[str, str] | None = None,
    extra: dict[str, np.ndarray] | None = None,
    raw: dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType]] | None = None,
    byte_vocabulary: bool = False,
) -> None:
    """Matrices quantised to `kind` (a ggml type name), vectors in F32.
    rename: "" drops a tensor. raw: tensors added as blocks, under their ggml type.
    """
    config = model.config
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    if byte_vocabulary:
        _add_vocabulary(writer, config.vocab_size)
    for name, parameter in model.named_parameters():
        target = (rename or {}).get(name, gguf_name(name))
        if target:
            _add(writer, target, _laid_out(name, parameter, config, architecture), kind)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    for name, (data, target_kind) in (raw or {}).items():
        writer.add_tensor(name, data, raw_dtype=target_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _laid_out(name: str, parameter: torch.Tensor, config: Any, architecture: str) -> np.ndarray:
    values = parameter.detach().float().numpy()
    if architecture == "llama" and ".q_proj." in name:
        return permute(values, config.num_attention_heads)
    if architecture == "llama" and ".k_proj." in name:
        return permute(values, config.num_key_value_heads)
    return values


def _add(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: str) -> None:
    if values.ndim == 1 or kind == "F32":
        writer.add_tensor(name, np.ascontiguousarray(values))
        return
    target = gguf.GGMLQuantizationType[kind]
    writer.add_tensor(name, quantize(np.ascontiguousarray(values), target), raw_dtype=target)


def _add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """A byte-level vocabulary: printable characters stand for themselves, the rest is filler."""
    letters = [chr(code) for code in range(33, 127)]
    tokens = ["<|endoftext|>", *letters, "He"][:size]
    tokens += [f"<filler{i}>" for i in range(size - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (size - 1))
    writer.add_token_merges(["H e"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
