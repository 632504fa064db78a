"""Shared by the tests of model sources: a small config, sources by their options, a weightless folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

from engine.build import make_config
from engine.models.local import LocalModel
from engine.models.smollm2 import SmolLM2
from engine.models.tiny import TinyModel

ALL = ("float32", "bfloat16", "float16")
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "eos_token_id": 7,
}


def tiny(**options: Any) -> TinyModel:
    return TinyModel(make_config(TinyModel, options, "model"))


def smollm2(**options: Any) -> SmolLM2:
    return SmolLM2(make_config(SmolLM2, options, "model"))


def local(path: object, **options: Any) -> LocalModel:
    return LocalModel(make_config(LocalModel, {"path": str(path), **options}, "model"))


def write_folder(folder: Path, **changes: Any) -> Path:
    """A folder with a config and a tokenizer, without weights."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    inner = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.save(str(folder / "tokenizer.json"))
    return folder
