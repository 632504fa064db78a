"""Model sources: configs, shapes without torch, dtypes, tiny and dummy weights."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from source_cases import ALL, local, smollm2, tiny, write_folder

from engine.build import config_keys, make_config, target_class
from engine.errors import UserError
from engine.footprints import parameters
from engine.models.build import build_llama
from engine.models.dummy import DummyModel
from engine.models.linear import Int4Linear
from engine.models.names import expected_tensors
from engine.models.smollm2 import SHAPE
from engine.models.source import compute_dtype
from engine.models.tiny import TinyModel
from engine.models.weights import DummyWeights

CONF = Path(__file__).parents[2] / "conf" / "model"


@pytest.mark.parametrize("name", ["tiny", "smollm2", "local"])
def test_yaml_holds_the_defaults_of_the_class(name: str) -> None:
    node = OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"))
    assert isinstance(node, dict)
    cls = target_class(node["_target_"])
    options = {str(key): value for key, value in node.items()}
    assert make_config(cls, options, "model") == make_config(cls, {}, "model")
    assert set(node) - {"_target_"} == set(config_keys(cls))


def test_sources_and_shapes_need_no_torch(tmp_path: Path) -> None:
    write_folder(tmp_path / "m")
    code = (
        "import sys\n"
        "from engine.models import local, smollm2, tiny, embedded\n"
        "from engine.build import make_config as make\n"
        "node = {'path': sys.argv[1]}\n"
        "print(local.LocalModel(make(local.LocalModel, node, 'model')).shape())\n"
        "for cls in (tiny.TinyModel, smollm2.SmolLM2):\n"
        "    source = cls(make(cls, {}, 'model'))\n"
        "    print(source.shape(), source.resolve_dtype('cpu', ('float32', 'bfloat16')))\n"
        "assert 'torch' not in sys.modules and 'gguf' not in sys.modules, 'imported'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "m")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "vocab_size=49152" in done.stdout


@pytest.mark.parametrize(
    ("make", "device", "supported", "expected"),
    [
        (smollm2, "cpu", ALL, "int4"),
        (smollm2, "cpu", ("float32",), "float32"),
        (smollm2, "cuda", ALL, "bfloat16"),
        (smollm2, "cuda:1", ("float32",), "float32"),
        (tiny, "cpu", ALL, "float32"),
        (tiny, "cuda", ALL, "bfloat16"),
    ],
)
def test_automatic_dtype(make: Any, device: str, supported: tuple[str, ...], expected: str) -> None:
    source = make()
    assert source.resolve_dtype(device, supported) == expected
    assert compute_dtype(expected) in supported


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("fp32", "float32"),
        ("bf16", "bfloat16"),
        ("fp16", "float16"),
        ("float16", "float16"),
        ("int4", "int4"),
    ],
)
def test_explicit_dtype(asked: str, expected: str) -> None:
    assert smollm2(dtype=asked).resolve_dtype("cpu", ALL) == expected


@pytest.mark.parametrize(
    ("make", "dtype", "device", "supported", "reason", "nearest"),
    [
        (smollm2, "int4", "cuda", ALL, "int4 weights run on the CPU only", "bfloat16"),
        (smollm2, "int4", "cpu", ("float32",), "bfloat16, in which int4 computes,", "float32"),
        (tiny, "int4", "cpu", ALL, "those of model=tiny are not", "bfloat16"),
        (smollm2, "bf16", "cpu", ("float32",), "bfloat16 is not among", "float32"),
        (smollm2, "fp32", "cuda", ("bfloat16", "float16"), "float32 is not among", "bfloat16"),
    ],
)
def test_dtype_that_cannot_work(
    make: Any, dtype: str, device: str, supported: tuple[str, ...], reason: str, nearest: str
) -> None:
    with pytest.raises(UserError) as caught:
        make(dtype=dtype).resolve_dtype(device, supported)
    message = str(caught.value)
    assert f"model.dtype={dtype}" in message
    assert reason in message
    assert message.endswith(f"use model.dtype={nearest}")
    assert make(dtype=nearest).resolve_dtype(device, supported) == nearest


def weights_of(source: TinyModel) -> dict[str, torch.Tensor]:
    weights = source.load("cpu", "float32").model.weights
    hidden, first = torch.eye(64), weights.layers[0]  # multiplying by it shows the weights
    return {
        "embed": weights.embed,
        "qkv": first.qkv(hidden),
        "norm": first.input_norm,
        "head": weights.head(hidden),
    }


def test_tiny_weights_depend_on_the_seed_alone() -> None:
    one, again, other = (weights_of(tiny(seed=seed)) for seed in (3, 3, 4))
    for name in one:
        assert torch.equal(one[name], again[name])
        assert not torch.equal(one[name], other[name])


@pytest.mark.parametrize("options", [{}, {"tied": True}, {"qkv_bias": True, "qk_norm": True}, {"layers": 1}])
def test_tiny_has_the_shape_it_declares(options: dict[str, Any]) -> None:
    source = tiny(**options)
    loaded = source.load("cpu", "float32")
    assert loaded.model.shape == source.shape()
    assert loaded.tokenizer.vocab_size == 512
    assert loaded.eos_ids == loaded.tokenizer.eos_ids == (257,)
    assert len(loaded.model.layers) == source.shape().num_layers
    tied = torch.equal(loaded.model.weights.head(torch.eye(64)).T, loaded.model.weights.embed)
    assert tied == bool(options.get("tied"))
    assert (loaded.model.weights.layers[0].q_norm is not None) == bool(options.get("qk_norm"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 4, "kv_heads": 3}, "model.kv_heads=3"),
        ({"head_dim": 15}, "model.head_dim=15"),
        ({"path": "x.gguf"}, "model.path=x.gguf"),
        ({"vocab": 100}, "model.vocab"),
        ({"dtype": "int5"}, "model.dtype"),
    ],
)
def test_tiny_refuses_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny(**options)


def test_dummy_folder_has_its_real_shape_and_needs_no_weights(tmp_path: Path) -> None:
    source = local(write_folder(tmp_path / "m"), load="dummy", seed=5)
    loaded = source.load("cpu", "bfloat16")
    assert loaded.model.shape == source.shape()
    assert loaded.model.weights.embed.shape == (96, 64)
    assert loaded.model.kv_layout.dtype == "bfloat16"
    assert loaded.eos_ids == (7,)


def test_dummy_int4_packs_blocks() -> None:
    shape = replace(SHAPE, num_layers=1, vocab_size=512)
    reader = DummyWeights(expected_tensors(shape), 0, blocks=True)
    model = build_llama(shape, reader, "int4", "cpu")
    assert isinstance(model.weights.layers[0].gate_up, Int4Linear)
    assert 0.5 < reader.q4("model.layers.0.mlp.up_proj.weight").dense().std() * 576**0.5 < 2


@pytest.mark.parametrize(
    ("generation", "expected"), [({"eos_token_id": [5, 6]}, (5, 6)), ({"eos_token_id": 4}, (4,)), ({}, (7,))]
)
def test_generation_config_names_the_end_first(
    generation: dict[str, Any], expected: tuple[int, ...], tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "generation_config.json").write_text(json.dumps(generation))
    assert local(folder, load="dummy").load("cpu", "float32").eos_ids == expected


@pytest.mark.parametrize(
    ("like", "billions"), [("smollm2-135m", 0.1345), ("llama-3.2-1b", 1.236), ("llama-3.1-8b", 8.030)]
)
def test_dummy_models_have_the_published_sizes(like: str, billions: float) -> None:
    source = DummyModel(make_config(DummyModel, {"like": like}, "model"))
    assert parameters(source.shape()) / 1e9 == pytest.approx(billions, rel=1e-3)


def test_a_dummy_model_reads_no_file() -> None:
    with pytest.raises(UserError, match="model=dummy reads no file"):
        DummyModel(make_config(DummyModel, {"path": "x"}, "model"))
