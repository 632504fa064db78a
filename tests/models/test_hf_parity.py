"""Tiny random checkpoints made by transformers give the same logits through our loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from dense_attention import DenseLoop
from random_hf import random_model

from engine.build import make_config
from engine.errors import UserError
from engine.models.build import build_llama
from engine.models.hf_config import read_json, shape_from_config
from engine.models.local import LocalModel
from engine.models.safetensors_reader import SafetensorsReader

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-bias": ("Llama", {"attention_bias": True}),
    "llama-head-dim": ("Llama", {"head_dim": 16}),
    "llama-theta": ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 50000.0}}),
    "llama-llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "llama-yarn": ("Llama", {"rope_parameters": YARN}),
    "llama-yarn-factor": ("Llama", {"rope_parameters": {**YARN, "attention_factor": 0.7, "beta_fast": 16}}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 128}),
    "qwen2": ("Qwen2", {}),
    "qwen2-tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3-bias": ("Qwen3", {"head_dim": 8, "attention_bias": True}),
}
IDS = torch.arange(1, 91).remainder(96).tolist()  # 90 tokens: past the scaled contexts of 64


def make_hf(case: str) -> transformers.PreTrainedModel:
    family, extra = CASES[case]
    return random_model(family, 0, **SIZES, **extra)


def hf_logits(model: transformers.PreTrainedModel, ids: list[int] = IDS) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0]


def assert_theirs(found: torch.Tensor, theirs: transformers.PreTrainedModel, atol: float = 2e-5) -> None:
    """Logits of IDS, in float32, are those of transformers in float64. In float32 both are 1 to 2e-5 away
    from these, and how far depends on the processor."""
    torch.testing.assert_close(found.double(), hf_logits(theirs.double()), atol=atol, rtol=1e-5)


def ours(folder: Path, dtype: str = "float32") -> Any:
    shape = shape_from_config(read_json(folder / "config.json"), str(folder))
    return build_llama(shape, SafetensorsReader(folder), dtype, "cpu")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shard", ["5GB", "40KB"], ids=["single", "sharded"])
def test_logits_equal_transformers(case: str, shard: str, tmp_path: Path) -> None:
    theirs = make_hf(case)
    theirs.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard == "40KB")
    assert hf_logits(theirs).std() > 0.1
    assert_theirs(DenseLoop(ours(tmp_path)).logits(IDS), theirs)


@pytest.mark.parametrize("case", ["llama", "qwen2", "qwen3-bias"])
def test_chunks_and_single_tokens_equal_one_pass(case: str, tmp_path: Path) -> None:
    theirs = make_hf(case)
    theirs.save_pretrained(tmp_path)
    loop = DenseLoop(ours(tmp_path))
    parts = [IDS[:7], IDS[7:40], *([token] for token in IDS[40:])]
    found = torch.cat([loop.logits(part) for part in parts])
    assert_theirs(found, theirs, atol=3e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_lower_precision_stays_near(dtype: str, tmp_path: Path) -> None:
    theirs = make_hf("qwen3")
    theirs.save_pretrained(tmp_path)
    model = ours(tmp_path, dtype)
    assert model.kv_layout.dtype == dtype
    expected = hf_logits(theirs)
    found = DenseLoop(model).logits(IDS)
    assert found.dtype == torch.float32
    assert (found - expected).abs().mean() < 0.03 * expected.std()


def test_config_spellings_of_version_4(tmp_path: Path) -> None:
    """rope_theta at the top level, rope_scaling with "type", no head_dim."""
    theirs = make_hf("llama-linear")
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["rope_parameters"]
    config.pop("head_dim", None)
    config |= {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}}
    path.write_text(json.dumps(config))
    assert_theirs(DenseLoop(ours(tmp_path)).logits(IDS), theirs)


def test_stray_file_beside_an_index_is_ignored(tmp_path: Path) -> None:
    theirs = make_hf("llama")
    theirs.save_pretrained(tmp_path, max_shard_size="40KB")
    other = make_hf("llama")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.save_pretrained(tmp_path / "stray")
    (tmp_path / "stray" / "model.safetensors").rename(tmp_path / "model.safetensors")
    assert_theirs(DenseLoop(ours(tmp_path)).logits(IDS), theirs)


@pytest.mark.parametrize("shard", ["5GB", "40KB"], ids=["single", "sharded"])
def test_truncated_file_is_named_with_its_bytes(shard: str, tmp_path: Path) -> None:
    make_hf("llama").save_pretrained(tmp_path, max_shard_size=shard)
    victim = sorted(tmp_path.glob("*.safetensors"))[-1]
    data = victim.read_bytes()
    victim.write_bytes(data[:-1000])
    with pytest.raises(
        UserError, match=rf"{victim.name} is truncated: {len(data) - 1000} bytes .* {len(data)}"
    ):
        ours(tmp_path)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    make_hf("llama").save_pretrained(tmp_path, max_shard_size="40KB")
    victim = sorted(tmp_path.glob("*.safetensors"))[0]
    victim.unlink()
    with pytest.raises(UserError, match=victim.name):
        ours(tmp_path)


def test_shape_is_known_before_the_weights(tmp_path: Path) -> None:
    make_hf("qwen3").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    source = LocalModel(make_config(LocalModel, {"path": str(tmp_path)}, "model"))
    shape = source.shape()
    assert shape is not None
    assert (shape.qk_norm, shape.head_dim, shape.num_kv_heads, shape.vocab_size) == (True, 16, 2, 96)
