"""The embedded model against transformers on the same file: logits, greedy text, and what int4 costs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from dense_attention import DenseLoop
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from engine.build import make_config
from engine.models.base import LoadedModel
from engine.models.embedded import embedded_file
from engine.models.linear import Int4Linear
from engine.models.smollm2 import SHAPE, SmolLM2

pytestmark = pytest.mark.model
PROMPTS = Path(__file__).parent / "smollm2_prompts.json"  # 20 questions of many kinds
# Raise both (20 and 128) for the full comparison, which takes minutes.
GREEDY_PROMPTS = int(os.environ.get("GREEDY_PROMPTS", "3"))
GREEDY_TOKENS = int(os.environ.get("GREEDY_TOKENS", "48"))


def load(dtype: str) -> LoadedModel:
    return SmolLM2(make_config(SmolLM2, {}, "model")).load("cpu", dtype)


@pytest.fixture(scope="module")
def ours() -> LoadedModel:
    return load("float32")


@pytest.fixture(scope="module")
def theirs() -> Any:
    """transformers' own reading of the file; its from_pretrained would ask for accelerate as well."""
    path = str(embedded_file())
    config = transformers.LlamaConfig(**load_gguf_checkpoint(path)["config"])
    model = transformers.LlamaForCausalLM(config).float().eval()
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model


def prompts(model: LoadedModel) -> list[list[int]]:
    texts = json.loads(PROMPTS.read_text(encoding="utf-8"))
    return [model.tokenizer.encode_chat([{"role": "user", "content": text}]) for text in texts]


def test_the_file_has_the_declared_shape(ours: LoadedModel) -> None:
    assert ours.model.shape == SHAPE
    assert ours.eos_ids == (2,)
    assert list(ours.files.values()) == ["b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"]


def test_logits_equal_transformers(ours: LoadedModel, theirs: Any) -> None:
    for ids in prompts(ours)[:5]:
        with torch.inference_mode():
            expected = theirs(torch.tensor([ids])).logits[0]
        torch.testing.assert_close(DenseLoop(ours.model).logits(ids), expected, atol=1e-4, rtol=0)


def test_greedy_ids_equal_transformers(ours: LoadedModel, theirs: Any) -> None:
    """One pass of theirs over our text: if its best token is ours everywhere, its greedy text is ours."""
    for ids in prompts(ours)[:GREEDY_PROMPTS]:
        found = DenseLoop(ours.model).greedy(ids, GREEDY_TOKENS)
        with torch.inference_mode():
            logits = theirs(torch.tensor([ids + found])).logits[0, len(ids) - 1 : -1]
        assert logits.argmax(-1).tolist() == found


def test_int4_agrees_with_fp32_as_well_as_bf16_does(ours: LoadedModel) -> None:
    """Over fp32's text: the same best token about as often, the same distance in probability."""
    sequences = [ids + DenseLoop(ours.model).greedy(ids, 24) for ids in prompts(ours)[:4]]
    exact = torch.cat([DenseLoop(ours.model).logits(ids) for ids in sequences]).log_softmax(-1)
    scores = {}
    for dtype in ("bfloat16", "int4"):
        model = load(dtype).model
        found = torch.cat([one_by_one(model, ids) for ids in sequences]).log_softmax(-1)
        divergence = (exact.exp() * (exact - found)).sum(-1).mean()
        agreement = (exact.argmax(-1) == found.argmax(-1)).float().mean()
        scores[dtype] = (float(divergence), float(agreement))
    assert scores["bfloat16"][0] < 0.01
    assert scores["int4"][0] < 1.2 * scores["bfloat16"][0], scores
    assert scores["int4"][1] > scores["bfloat16"][1] - 0.02, scores


def one_by_one(model: Any, ids: list[int]) -> torch.Tensor:
    """In passes of 4 tokens, the sizes that the packed kernels serve."""
    loop = DenseLoop(model)
    return torch.cat([loop.logits(ids[start : start + 4]) for start in range(0, len(ids), 4)])


def test_int4_packs_every_projection() -> None:
    weights = load("int4").model.weights
    for layer in weights.layers:
        assert all(
            isinstance(part, Int4Linear) for part in (layer.qkv, layer.output, layer.gate_up, layer.down)
        )
