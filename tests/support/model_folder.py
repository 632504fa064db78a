"""A small Llama in a folder as the hub has it: random weights, a byte-level tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engine.models.hf_config import shape_from_config
from engine.models.names import expected_tensors

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 260,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "eos_token_id": 257,
}


def write_model(folder: Path, seed: int = 0) -> Path:
    """config.json, model.safetensors, tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    draw = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randn(size, generator=draw) * (size[-1] ** -0.5 if len(size) > 1 else 1.0)
        for name, size in expected_tensors(shape_from_config(CONFIG, "CONFIG")).items()
    }
    save_file(tensors, folder / "model.safetensors")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*alphabet, "<s>", "</s>", "<x>", "<y>"])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.save(str(folder / "tokenizer.json"))
    return folder
