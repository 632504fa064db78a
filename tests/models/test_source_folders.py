"""Folders, files and hub ids that cannot be a model: each ends in one sentence."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from source_cases import CONFIG, local, write_folder

from engine.build import make_config
from engine.errors import UserError
from engine.models import hub
from engine.models.hf_config import shape_from_config
from engine.models.local import LocalModel


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
