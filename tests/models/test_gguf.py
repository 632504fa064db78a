"""GGUF files: the same model as in safetensors, quantised blocks against the gguf package, broken files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from dense_attention import DenseLoop
from gguf.quants import dequantize
from gguf_writing import write_gguf

from engine.build import make_config
from engine.errors import UserError
from engine.models.blocks import unpack_q4
from engine.models.build import build_llama
from engine.models.gguf_file import GgufFile
from engine.models.gguf_reader import GgufReader
from engine.models.gguf_shape import packs_int4, shape_of
from engine.models.linear import Int4Linear
from engine.models.local import LocalModel
from engine.models.names import expected_tensors

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
    config = getattr(transformers, f"{FAMILIES[architecture]}Config")(**{**SIZES, **extra})
    torch.manual_seed(1)
    model = getattr(transformers, f"{FAMILIES[architecture]}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (1.0 if "norm" in name else 0.0))
    return model


def reader_of(path: Path) -> GgufReader:
    file = GgufFile(path)
    return GgufReader(file, shape_of(file))


def logits_of(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([IDS])).logits[0]


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
def test_f32_tensors_and_logits_equal(architecture: str, tied: bool, tmp_path: Path) -> None:
    theirs = make_hf(architecture, tie_word_embeddings=tied)
    write_gguf(theirs, tmp_path / "m.gguf", "F32", architecture=architecture)
    reader = reader_of(tmp_path / "m.gguf")
    shape = shape_of(GgufFile(tmp_path / "m.gguf"))
    assert shape.tied == tied
    parameters = dict(theirs.named_parameters())
    assert set(reader.shapes) == set(parameters) == set(expected_tensors(shape))
    for name, parameter in parameters.items():
        assert torch.equal(reader.read(name), parameter), name
    found = DenseLoop(build_llama(shape, reader, "float32", "cpu")).logits(IDS)
    torch.testing.assert_close(found, logits_of(theirs), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "error"),
    [("F16", 1e-3), ("BF16", 8e-3), ("Q8_0", 8e-3), ("Q4_0", 0.13), ("Q4_1", 0.08), ("Q5_1", 0.04)],
)
def test_quantised_tensors_are_near_and_exactly_as_stored(kind: str, error: float, tmp_path: Path) -> None:
    """W4: q and k are right after the un-permutation, for every way of storing them."""
    theirs = make_hf()
    write_gguf(theirs, tmp_path / "m.gguf", kind)
    reader = reader_of(tmp_path / "m.gguf")
    for name, parameter in theirs.named_parameters():
        found = reader.read(name)
        if parameter.ndim == 1:
            assert torch.equal(found, parameter)
            continue
        assert (found - parameter).abs().max() < error * parameter.abs().max(), name
        blocks = reader.q4(name)
        assert (blocks is not None) == kind.startswith("Q4")
        if blocks is not None:  # the 4-bit path and the dequantised path hold the same numbers
            torch.testing.assert_close(blocks.dense(), found, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("kind", "number"), [("Q4_0", 2), ("Q4_1", 3), ("Q4_K", 12)])
def test_unpacked_blocks_equal_the_packages_dequantisation(kind: str, number: int) -> None:
    target = gguf.GGMLQuantizationType[kind]
    data = random_blocks(target, rows=7, blocks=3)
    found = unpack_q4(data, number)
    assert found.codes.max() <= 15
    expected = torch.from_numpy(dequantize(data, target))
    torch.testing.assert_close(found.dense(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q5_K", "Q8_0", "Q5_0"])
def test_stored_blocks_are_read_as_the_package_reads_them(kind: str, tmp_path: Path) -> None:
    """A file with random blocks in one tensor: right rows, right values."""
    target = gguf.GGMLQuantizationType[kind]
    theirs = make_hf(hidden_size=256, num_attention_heads=4)
    data = random_blocks(target, rows=96, blocks=256 // gguf.GGML_QUANT_SIZES[target][0])
    name = "model.layers.1.mlp.gate_proj.weight"
    path = tmp_path / "m.gguf"
    write_gguf(theirs, path, "F32", rename={name: ""}, raw={"blk.1.ffn_gate.weight": (data, target)})
    found = reader_of(path).read(name)
    assert torch.equal(found, torch.from_numpy(dequantize(data, target)))


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


def test_rope_factors_of_a_file_scale_the_frequencies(tmp_path: Path) -> None:
    """Converted Llama 3 files store the scaling as one divisor a frequency."""
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    theirs = make_hf(rope_parameters=scaling)
    plain = 1.0 / 10000.0 ** (torch.arange(0, 16, 2) / 16)
    factors = (plain / theirs.model.rotary_emb.inv_freq).numpy().astype(np.float32)
    assert factors.max() > 3.9
    write_gguf(theirs, tmp_path / "m.gguf", "F32", extra={"rope_freqs.weight": factors})
    file = GgufFile(tmp_path / "m.gguf")
    model = build_llama(shape_of(file), GgufReader(file, shape_of(file)), "float32", "cpu")
    torch.testing.assert_close(DenseLoop(model).logits(IDS), logits_of(theirs), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_int4_agrees_with_the_dequantised_model(kind: str, tmp_path: Path) -> None:
    write_gguf(make_hf(), tmp_path / "m.gguf", kind)
    file = GgufFile(tmp_path / "m.gguf")
    shape = shape_of(file)
    assert packs_int4(file)
    exact, low, packed = (
        DenseLoop(build_llama(shape, GgufReader(file, shape), dtype, "cpu")).logits(IDS)
        for dtype in ("float32", "bfloat16", "int4")
    )
    noise = (low - exact).pow(2).mean().sqrt()
    assert 0 < (packed - exact).pow(2).mean().sqrt() < 2 * noise
    assert noise < 0.05 * exact.std()


def test_mixed_files_keep_finer_tensors(tmp_path: Path) -> None:
    """A projection with one part of more than 4 bits is not squeezed into int4."""
    theirs = make_hf(hidden_size=256, num_attention_heads=4)
    kind = gguf.GGMLQuantizationType.Q6_K
    data = random_blocks(kind, rows=96, blocks=1)
    name, path = "model.layers.1.mlp.gate_proj.weight", tmp_path / "m.gguf"
    write_gguf(theirs, path, "Q4_0", rename={name: ""}, raw={"blk.1.ffn_gate.weight": (data, kind)})
    shape, reader = shape_of(GgufFile(path)), reader_of(path)
    assert packs_int4(GgufFile(path))
    first, second = (layer.gate_up for layer in build_llama(shape, reader, "int4", "cpu").weights.layers)
    assert isinstance(first, Int4Linear)
    assert not isinstance(second, Int4Linear)
    x = torch.eye(256, dtype=torch.bfloat16)  # multiplying by it shows the weights
    assert torch.equal(second(x)[:, :96].T, reader.read(name).bfloat16())


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
