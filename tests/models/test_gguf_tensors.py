"""Tensors in GGUF files: those of the same model, and blocks as the gguf package reads them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from dense_attention import DenseLoop
from gguf.quants import dequantize
from gguf_models import FAMILIES, IDS, logits_of, make_hf, random_blocks, reader_of
from gguf_writing import write_gguf

from engine.models.blocks import unpack_q4
from engine.models.build import build_llama
from engine.models.gguf_file import GgufFile
from engine.models.gguf_reader import GgufReader
from engine.models.gguf_shape import shape_of
from engine.models.names import expected_tensors


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
