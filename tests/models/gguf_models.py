"""Small transformers models to be written as GGUF files, random blocks, and readers of what was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from random_hf import random_model

from engine.models.gguf_file import GgufFile
from engine.models.gguf_reader import GgufReader
from engine.models.gguf_shape import shape_of

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
}
FAMILIES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
IDS = list(range(1, 41))


def make_hf(architecture: str = "llama", **extra: Any) -> Any:
    if architecture == "qwen3":
        extra.setdefault("head_dim", 32)
    return random_model(FAMILIES[architecture], 1, **{**SIZES, **extra})


def reader_of(path: Path) -> GgufReader:
    file = GgufFile(path)
    return GgufReader(file, shape_of(file))


def logits_of(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([IDS])).logits[0]


def random_blocks(kind: gguf.GGMLQuantizationType, rows: int, blocks: int) -> np.ndarray:
    """uint8 [rows, bytes]: random codes, but halves that are finite and of moderate size."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    generator = np.random.default_rng(3)
    data = generator.integers(0, 256, (rows * blocks, size), dtype=np.uint8)
    starts = {"Q6_K": (size - 2,), "Q4_0": (0,), "Q8_0": (0,), "Q5_0": (0,)}.get(kind.name, (0, 2))
    for start in starts:
        halves = generator.normal(0, 0.1, (rows * blocks, 1)).astype(np.float16)
        data[:, start : start + 2] = halves.view(np.uint8)
    return data.reshape(rows, blocks * size)
