"""A checkpoint's tensors are those of its architecture, all of them and no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from source_cases import CONFIG

from engine.errors import UserError
from engine.models.build import build_llama
from engine.models.hf_config import shape_from_config
from engine.models.names import HEAD, check_tensors, expected_tensors


@pytest.mark.parametrize(
    ("drop", "add", "message"),
    [
        (["model.norm.weight", "lm_head.weight"], {}, "model.norm.weight, lm_head.weight are missing"),
        ([], {"model.layers.0.mlp.gate_proj.bias": (96,)}, "gate_proj.bias is not of this architecture"),
        ([], {"model.norm.weight": (3,)}, r"model.norm.weight \[3\] instead of \[64\] is of the wrong shape"),
        (
            [],
            {"model.layers.2.input_layernorm.weight": (64,)},
            "model.layers.2.input_layernorm.weight is not of",
        ),
    ],
)
def test_every_wrong_tensor_is_named(drop: list[str], add: dict[str, Any], message: str) -> None:
    shape = shape_from_config(CONFIG, "config.json")
    found = {name: size for name, size in expected_tensors(shape).items() if name not in drop} | add
    with pytest.raises(UserError, match=message):
        check_tensors(shape, found, "here")


def test_only_listed_buffers_may_be_extra() -> None:
    shape = shape_from_config(CONFIG, "config.json")
    found = {**expected_tensors(shape), "model.layers.0.self_attn.rotary_emb.inv_freq": (8,)}
    check_tensors(shape, found, "here")
    tied = replace(shape, tied=True)
    check_tensors(tied, found, "here")
    with pytest.raises(UserError, match=HEAD):
        check_tensors(shape, expected_tensors(tied), "here")


def test_tied_config_with_another_head_is_refused(tmp_path: Path) -> None:
    """A silent choice of either head would give wrong text."""
    from safetensors.torch import load_file, save_file

    from engine.models.safetensors_reader import SafetensorsReader

    sizes = {key: value for key, value in CONFIG.items() if key != "architectures"}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, tie_word_embeddings=True))
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    shape = shape_from_config({**CONFIG, "tie_word_embeddings": True}, "config.json")
    save_file({**tensors, HEAD: tensors["model.embed_tokens.weight"].clone()}, path)
    build_llama(shape, SafetensorsReader(tmp_path), "float32", "cpu")
    save_file({**tensors, HEAD: tensors["model.embed_tokens.weight"] + 1}, path)
    with pytest.raises(UserError, match="tie_word_embeddings"):
        build_llama(shape, SafetensorsReader(tmp_path), "float32", "cpu")


def test_quantised_safetensors_are_named(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from engine.models.safetensors_reader import SafetensorsReader

    save_file({"a": torch.zeros(2, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"model.safetensors: tensor a is stored as I8"):
        SafetensorsReader(tmp_path)
