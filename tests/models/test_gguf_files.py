"""GGUF files as such: headers as the gguf package reads them, names, a tokenizer; broken ones are refused."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_models import make_hf, reader_of
from gguf_writing import write_gguf

from engine.build import make_config
from engine.errors import UserError
from engine.models.build import build_llama
from engine.models.gguf_file import GgufFile
from engine.models.gguf_shape import shape_of
from engine.models.local import LocalModel


@pytest.mark.parametrize("cut", [1, 1000, 200_000])
def test_truncated_file_is_named_with_its_bytes(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(make_hf(), path, "F32")
    data = path.read_bytes()
    path.write_bytes(data[:-cut])
    with pytest.raises(UserError, match=rf"m.gguf is truncated: .* the file has {len(data) - cut} bytes"):
        reader_of(path)


@pytest.mark.parametrize("size", [0, 3, 10, 300])
def test_file_cut_within_its_header(size: int, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(make_hf(), path, "F32")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(UserError, match=rf"m.gguf .*{size} bytes"):
        GgufFile(path)


def test_not_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"something else entirely, long enough")
    with pytest.raises(UserError, match="not a GGUF file"):
        GgufFile(path)


def test_unknown_architecture_is_named(tmp_path: Path) -> None:
    write_gguf(make_hf(), tmp_path / "m.gguf", "F32", architecture="falcon")
    source = LocalModel(make_config(LocalModel, {"path": str(tmp_path / "m.gguf")}, "model"))
    with pytest.raises(UserError, match=r"falcon.*supported are llama, qwen2, qwen3"):
        source.shape()


@pytest.mark.parametrize(
    ("rename", "extra", "message"),
    [
        ({"model.layers.0.mlp.up_proj.weight": ""}, {}, "model.layers.0.mlp.up_proj.weight is missing"),
        ({}, {"blk.0.attn_sinks.weight": np.ones(4, np.float32)}, "blk.0.attn_sinks.weight is not of"),
        (
            {"model.norm.weight": ""},
            {"output_norm.weight": np.ones(32, np.float32)},
            r"model.norm.weight \[32\] instead of \[64\] is of the wrong shape",
        ),
    ],
)
def test_strict_names(
    rename: dict[str, str], extra: dict[str, np.ndarray], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(make_hf(), path, "F32", rename=rename, extra=extra)
    reader = reader_of(path)
    with pytest.raises(UserError, match=message):
        build_llama(shape_of(GgufFile(path)), reader, "float32", "cpu")


def test_the_fast_header_reader_equals_the_packages(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(make_hf(), path, "Q8_0", byte_vocabulary=True)
    ours, theirs = GgufFile(path), gguf.GGUFReader(path)
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert {name: field.contents() for name, field in fields.items()} == {
        name: field.value for name, field in ours.fields.items()
    }
    assert len(theirs.tensors) == len(ours.tensors)
    for tensor in theirs.tensors:
        mine = ours.data(ours.tensors[tensor.name])
        assert np.array_equal(mine.reshape(-1), tensor.data.view(np.uint8).reshape(-1)), tensor.name


def test_local_source_loads_a_file_with_its_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(make_hf(), path, "F16", byte_vocabulary=True)
    source = LocalModel(make_config(LocalModel, {"path": str(path)}, "model"))
    loaded = source.load("cpu", source.resolve_dtype("cpu", ("float32",)))
    assert loaded.eos_ids == (0,)
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("Hey")) == "Hey"
    assert list(loaded.files) == ["m.gguf"]
    assert loaded.model.shape == source.shape()
