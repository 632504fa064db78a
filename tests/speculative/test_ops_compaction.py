"""The KV of accepted tree nodes comes to the front of its window: torch and the Triton kernel."""

from __future__ import annotations

import os

import pytest
import torch
from tree_cases import devices, random_ends, random_tree

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is first imported

from engine.batch import LayerKV
from speculative.ops import TorchDraftOps, draft_ops


def layers_of(shapes: list[tuple[int, int]], slots: int, device: str, dtype: torch.dtype) -> list[LayerKV]:
    gen = torch.Generator().manual_seed(3)

    def side(heads: int, dim: int) -> torch.Tensor:
        return torch.randn(slots, heads, dim, generator=gen).to(device, dtype)

    return [LayerKV(i, side(*shape), side(*shape)) for i, shape in enumerate(shapes)]


@devices
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("batch", "width"), [(0, 4), (1, 1), (1, 2), (5, 7), (3, 16)])
@pytest.mark.parametrize("shapes", [[(3, 64)] * 3, [(1, 24), (1, 24), (2, 40)]], ids=["one", "two groups"])
def test_l6_compaction(
    device: str, dtype: torch.dtype, batch: int, width: int, shapes: list[tuple[int, int]]
) -> None:
    slots = torch.randperm(200)[: batch * width].view(batch, width).to(device)
    tree = random_tree(batch, width, device, seed=batch)
    ends = random_ends(batch, width, device, seed=1)
    index = TorchDraftOps().settle(tree, tree.tokens.roll(-1, 1), *ends, None).taken.accept_index
    layers = [layers_of(shapes, 200, device, dtype) for _ in range(3)]
    TorchDraftOps().compactor(layers[0])(slots, index)
    draft_ops("triton").compactor(layers[1])(slots, index)
    for expected, got, old in zip(*layers, strict=True):
        for side in ("k", "v"):
            before, after = getattr(old, side), getattr(got, side)
            assert torch.equal(after, getattr(expected, side))
            for b in range(batch):
                for j, node in enumerate(index[b].tolist()):
                    source = slots[b, node if node >= 0 else j]
                    assert torch.equal(after[slots[b, j]], before[source])


@devices
def test_every_read_of_a_window_comes_before_its_writes(device: str) -> None:
    """Rotated windows: each slot is a source and a target."""
    slots = torch.randperm(64)[:32].view(2, 16).to(device)
    index = torch.arange(16, dtype=torch.int32, device=device).roll(5).expand(2, 16)
    layers = layers_of([(8, 128)] * 2, 64, device, torch.float32)
    before = [layer.k.clone() for layer in layers]
    draft_ops("triton").compactor(layers)(slots, index)
    for layer, old in zip(layers, before, strict=True):
        assert torch.equal(layer.k[slots], old[slots.roll(5, 1)])
