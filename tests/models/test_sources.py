"""Model sources: dtypes, shapes without torch, dummy weights, and mistakes that end in one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from omegaconf import OmegaConf
from tokenizers import Tokenizer, models, pre_tokenizers

from engine.build import config_keys, make_config, target_class
from engine.errors import UserError
from engine.footprints import parameters
from engine.models import hub
from engine.models.build import build_llama
from engine.models.dummy import DummyModel
from engine.models.hf_config import shape_from_config
from engine.models.linear import Int4Linear
from engine.models.local import LocalModel
from engine.models.names import HEAD, check_tensors, expected_tensors
from engine.models.smollm2 import SHAPE, SmolLM2
from engine.models.tiny import TinyModel
from engine.models.weights import DummyWeights

ALL = ("float32", "bfloat16", "float16")
CONF = Path(__file__).parents[2] / "conf" / "model"
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


# -- configs


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


# -- dtypes


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
    assert source.compute_dtype(expected) in supported


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


# -- tiny and dummy weights


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


# -- folders, files and hub ids that do not work


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["FalconForCausalLM"]}, "FalconForCausalLM.*supported are LlamaForCausalLM"),
        ({"architectures": None, "model_type": "gpt2"}, "gpt2"),
        ({"hidden_act": "gelu"}, "hidden_act=gelu"),
        ({"mlp_bias": True}, "mlp_bias=true"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"hidden_size": None}, "hidden_size is None"),
        ({"num_attention_heads": "4"}, "num_attention_heads is '4'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "differ by layer type"),
    ],
)
def test_config_that_is_not_supported(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", **changes)
    with pytest.raises(UserError, match=message) as caught:
        local(folder).shape()
    assert "config.json" in str(caught.value)


def test_unknown_rope_scaling_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", rope_scaling={"rope_type": "longrope", "factor": 2.0})
    with pytest.raises(UserError, match=r"longrope.*supported are"):
        local(folder).shape()


def test_sliding_window_limits_the_context() -> None:
    config = {**CONFIG, "architectures": ["MistralForCausalLM"], "sliding_window": 64}
    shape = shape_from_config(config, "config.json")
    assert shape.context_problem(64) == ""
    assert "sliding window of 64" in shape.context_problem(65)
    assert "128 positions" in shape.context_problem(129)
    without = shape_from_config({**config, "sliding_window": None}, "config.json")
    assert without.context_problem(128) == ""


@pytest.mark.parametrize(
    ("content", "message"), [(None, "does not exist"), ("", "holds no config.json"), ("{", "not valid JSON")]
)
def test_folder_that_cannot_be_read(content: str | None, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    if content is not None:
        folder.mkdir()
    if content:
        (folder / "config.json").write_text(content)
    with pytest.raises(UserError, match=message):
        local(folder).shape()


def test_folder_without_weights_names_the_files(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(UserError, match=r"neither model.safetensors nor .*pytorch_model.bin"):
        local(folder).load("cpu", "float32")


def test_local_needs_a_path() -> None:
    with pytest.raises(UserError, match=r"model=local needs model.path"):
        LocalModel(make_config(LocalModel, {}, "model"))


def test_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(b"x")
    with pytest.raises(UserError, match=r"m.bin is no .gguf file"):
        local(tmp_path / "m.bin").shape()


def test_hub_id_in_the_cache_is_read_and_one_that_is_not_has_no_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert local("someone/model").shape() is None
    home = tmp_path / "models--someone--model"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("abc")
    (home / "snapshots").mkdir()
    write_folder(home / "snapshots" / "abc")
    shape = local("someone/model").shape()
    assert shape is not None
    assert shape.vocab_size == 96


def test_hub_without_client_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"model.path=someone/model .* pip install huggingface_hub"):
        local("someone/model").load("cpu", "float32")


def test_hub_without_network_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def fail(*args: object, **kwargs: object) -> str:
        raise ConnectionError("no route\nsecond line")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(UserError, match=r"could not be fetched \(no route\)") as caught:
        hub.fetch_snapshot("someone/model")
    assert "\n" not in str(caught.value)


# -- strict tensors


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


@pytest.mark.parametrize(
    ("like", "billions"), [("smollm2-135m", 0.1345), ("llama-3.2-1b", 1.236), ("llama-3.1-8b", 8.030)]
)
def test_dummy_models_have_the_published_sizes(like: str, billions: float) -> None:
    source = DummyModel(make_config(DummyModel, {"like": like}, "model"))
    assert parameters(source.shape()) / 1e9 == pytest.approx(billions, rel=1e-3)


def test_a_dummy_model_reads_no_file() -> None:
    with pytest.raises(UserError, match="model=dummy reads no file"):
        DummyModel(make_config(DummyModel, {"path": "x"}, "model"))
