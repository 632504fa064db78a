"""The memory plan of `attention=triton` is what it allocates, to the byte."""

from __future__ import annotations

import pytest
import torch

from backends.base import AttentionContext, AttentionSizes
from backends.triton import TritonAttention
from kernels.attention_splits import DECODE_ROWS
from kernels.attention_tiles import tiles_for

CUDA = torch.cuda.is_available()
PLACES = [
    pytest.param("cpu", marks=pytest.mark.skipif(CUDA, reason="Triton is compiled in this process")),
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="no CUDA device")]),
]
HEADS = [(32, 8, 128), (32, 32, 128), (64, 8, 128), (28, 4, 128), (9, 3, 64), (8, 1, 256), (16, 16, 80)]


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("splits", [0, 3])
@pytest.mark.parametrize(
    ("rows", "width", "positions"), [(2, 1, 90), (9, 16, 511), (65, 5, 2050), (257, 1, 8195)]
)
def test_what_is_planned_is_what_is_allocated(
    device: str,
    heads: tuple[int, int, int],
    dtype: torch.dtype,
    splits: int,
    rows: int,
    width: int,
    positions: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows of the table hold whole pages, and 511 positions are 512 of them."""
    processors = 132
    if device == "cuda":
        processors = torch.cuda.get_device_properties(0).multi_processor_count
    else:  # as on a GPU, in memory of the host that nobody touches
        monkeypatch.setattr("backends.triton._programs", lambda device: 4 * processors)
    query, kv, dim = heads
    config = TritonAttention.Config(splits)
    sizes = AttentionSizes(
        query, kv, dim, 16, rows, width, positions, dtype.itemsize, chunk=512, processors=processors
    )
    context = AttentionContext(
        "target", query, kv, dim, dim**-0.5, 16, rows, width, positions, torch.device(device), dtype
    )
    made = TritonAttention(config, context)._workspace
    allocated = sum(part.untyped_storage().nbytes() for part in (made.sums, made.stats, made.arrivals))
    assert allocated > 0
    assert TritonAttention.workspace_bytes(config, sizes, ()) == allocated


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("dim", [64, 80, 128, 256])
@pytest.mark.parametrize("generation", [0, 8, 9, 10])
def test_plans_count_the_tiles_that_passes_have(size: int, dim: int, generation: int) -> None:
    assert tiles_for(generation, size, dim).decode.rows == DECODE_ROWS[size]
