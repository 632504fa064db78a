"""GGUF files of 4-bit blocks as int4 weights: near the dequantised model, finer tensors kept as they are."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
from dense_attention import DenseLoop
from gguf_models import IDS, make_hf, random_blocks, reader_of
from gguf_writing import write_gguf

from engine.models.build import build_llama
from engine.models.gguf_file import GgufFile
from engine.models.gguf_reader import GgufReader
from engine.models.gguf_shape import packs_int4, shape_of
from engine.models.linear import Int4Linear


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
