"""Pools of more than 2^31 elements: addresses have 64 bits. On the CPU the pool is a sparse file."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "backends"))

from attention_cases import World, build, close, extend, reference, run, verify, windowed

from backends.triton import TritonAttention
from engine.batch import LayerKV
from kernels.compact_kv import Buffers, compact_kv
from kernels.rope_store import rope_store

CUDA = torch.cuda.is_available()
DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(CUDA, reason="Triton is compiled in this process")),
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="no CUDA device")]),
]
devices = pytest.mark.parametrize("device", DEVICES)
HEADS, DIM, PAGE = 2, 16, 16
FAR = (1 << 31) // (HEADS * DIM) + 5 * PAGE  # a slot whose first element lies past 2^31


def large(folder: Path, name: str, device: str, slots: int) -> torch.Tensor:
    """Zeros [slots, HEADS, DIM] of which only what is used takes room."""
    if device == "cuda":
        return torch.zeros(slots, HEADS, DIM, dtype=torch.float32, device=device)
    shape = (slots, HEADS, DIM)
    return torch.from_numpy(np.memmap(folder / name, dtype=np.float32, mode="w+", shape=shape))


def moved(world: World, folder: Path, device: str) -> World:
    """The same keys and values, every page but the padding one that much further on."""
    slots = world.kv.k.shape[0]
    pools = [large(folder, name, device, FAR + slots) for name in ("k", "v")]
    for old, new in zip((world.kv.k, world.kv.v), pools, strict=True):
        new[:PAGE] = old[:PAGE]
        new[FAR : FAR + slots] = old
    table = world.batch.page_table
    far = torch.where(table > 0, table + FAR // PAGE, 0).int()
    window = None if world.batch.window_slots is None else world.batch.window_slots + FAR
    batch = replace(world.batch, page_table=far, window_slots=window)
    return replace(world, batch=batch, kv=LayerKV(0, *pools))


@devices
@pytest.mark.parametrize(
    "case",
    [
        verify(1, lens=(37, 70)),
        verify(3, lens=(37,), tree=True),
        windowed(2, 6, lens=(20,)),
        extend((9,), (40,)),
    ],
    ids=["decode", "tree", "window", "extend"],
)
def test_attention(tmp_path: Path, device: str, case: object) -> None:
    small = replace(case, heads=4, kv_heads=HEADS, dim=DIM, page_size=PAGE, max_context=128, device=device)
    world = build(small)
    far = moved(world, tmp_path, device)
    backend = TritonAttention(TritonAttention.Config(2), world.context)
    close(run(backend, far), reference(world), torch.float32)


@devices
def test_rope_store(tmp_path: Path, device: str) -> None:
    k_pool, v_pool = (large(tmp_path, name, device, FAR + PAGE) for name in ("k", "v"))
    q, k, v = (torch.randn(2, heads, DIM, device=device) for heads in (4, HEADS, HEADS))
    tables = torch.ones(8, DIM, device=device), torch.zeros(8, DIM, device=device)
    slots = torch.tensor([FAR + 3, 2], device=device)
    positions = torch.tensor([1, 2], device=device)
    rope_store(q, k, v, *tables, positions, slots, k_pool, v_pool)
    assert torch.equal(k_pool[slots], k)
    assert torch.equal(v_pool[slots], v)


@devices
def test_compaction(tmp_path: Path, device: str) -> None:
    pool = large(tmp_path, "k", device, FAR + PAGE)
    slots = torch.arange(FAR, FAR + 4, device=device).view(1, 4)
    pool[FAR : FAR + 4] = torch.arange(4.0, device=device).view(4, 1, 1)
    index = torch.tensor([[0, 2, 3, -1]], dtype=torch.int32, device=device)
    compact_kv(Buffers.of([pool]), slots, index)
    assert pool[FAR : FAR + 4, 0, 0].tolist() == [0.0, 2.0, 3.0, 3.0]
