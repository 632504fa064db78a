"""Places of drafts, nodes past a request's limit, and the row that is kept: Triton against the reference."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from tree_cases import devices, random_tree, tokens_of

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is first imported

from engine.batch import ABSENT
from speculative.ops import DraftOps, Standing, TorchDraftOps, draft_ops
from speculative.tree import chain

CONTEXT = 256


def both() -> Sequence[DraftOps]:
    return draft_ops("triton"), TorchDraftOps()


def a_batch(batch: int, page_size: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """(start, rows, page table): the first and the last request are padding, in row 0 and page 0."""
    gen = torch.Generator().manual_seed(batch)
    pages = torch.randint(1, 99, (batch + 2, CONTEXT // page_size), generator=gen, dtype=torch.int32)
    pages[0] = 0
    start = torch.randint(0, CONTEXT - 40, (batch,), generator=gen, dtype=torch.int32)
    rows = torch.arange(batch)
    if batch:
        rows[-1] = 0
        start[rows == 0] = 0
    return start.to(device), rows.to(device), pages.to(device)


@devices
@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("steps", [0, 1, 3, 15])
@pytest.mark.parametrize("batch", [0, 1, 6])
def test_places_of_a_chain(device: str, page_size: int, steps: int, batch: int) -> None:
    start, rows, pages = a_batch(batch, page_size, device)
    for ops in both():
        root = torch.arange(3, 3 + batch, dtype=torch.int32, device=device)
        places = ops.chain_places(Standing(rows, start, pages, page_size), steps, root)
        assert places.tokens.shape == (batch, steps + 2)
        assert (places.tokens.dtype, places.tokens.is_contiguous()) == (torch.int32, True)
        assert torch.equal(places.tokens[:, 0], root)
        assert (places.lens.dtype, places.positions.dtype) == (torch.int32, torch.int64)
        assert places.slots.dtype == torch.int64
        assert places.slots.shape == places.lens.shape == places.positions.shape == (steps, batch)
        for step in range(steps):
            assert places.slots[step].is_contiguous()
            at = [n + step for n in start.tolist()]
            assert places.lens[step].tolist() == places.positions[step].tolist() == at
            assert places.slots[step].tolist() == [
                int(pages[row, n // page_size]) * page_size + n % page_size
                for row, n in zip(rows.tolist(), at, strict=True)
            ]


@devices
@pytest.mark.parametrize("batch", [1, 3, 5])
def test_every_pass_of_a_chain_is_aligned(device: str, batch: int) -> None:
    """Attention kernels are compiled for aligned lengths: others would be compiled while requests wait."""
    start, rows, pages = a_batch(batch, 16, device)
    places = draft_ops("triton").chain_places(Standing(rows, start, pages, 16), 4, start)
    for values in (places.lens, places.positions, places.slots):
        assert all(values[step].data_ptr() % 16 == 0 for step in range(4))


@devices
@pytest.mark.parametrize("tree_mask", [False, True])
@pytest.mark.parametrize("width", [1, 2, 5, 16])
@pytest.mark.parametrize("batch", [0, 1, 9])
def test_nodes_that_lie_too_deep_are_absent(device: str, tree_mask: bool, width: int, batch: int) -> None:
    start, rows, pages = a_batch(batch, 16, device)
    tree = random_tree(batch, width, device, 4) if tree_mask else chain(tokens_of(batch, width, device, 4))
    most = (torch.arange(batch + 2, dtype=torch.int32) % 4).to(device)
    made = []
    for ops in both():
        shape = ops.geometry(tree, tree_mask)
        present, nodes = ops.present_inputs(tree, shape, Standing(rows, start, pages, 16), most)
        plain = ops.node_inputs(tree, shape, Standing(rows, start, pages, 16))
        for name in ("ids", "positions", "slots"):
            assert torch.equal(getattr(nodes, name), getattr(plain, name)), name
        made.append(present)
        assert torch.equal(present.tokens, tree.tokens)
        assert present.parent.dtype == torch.int32
        depth = shape.depth.tolist()
        for b in range(batch):
            limit = int(most[rows[b]])
            wanted = [
                parent if width == 1 or depth[b][i] <= limit else ABSENT
                for i, parent in enumerate(tree.parent[b].tolist())
            ]
            assert present.parent[b].tolist() == wanted
    assert torch.equal(made[0].parent, made[1].parent)


@devices
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize("batch", [0, 1, 6])
def test_the_last_accepted_row_is_kept(device: str, dtype: torch.dtype, summed: bool, batch: int) -> None:
    count, size = 5, 80
    gen = torch.Generator().manual_seed(3)
    x = torch.randn(batch * count, size, generator=gen).to(device, dtype)
    # the residual stream is one half of a wider tensor where the draft takes it before its norm
    wide = torch.randn(batch * count, 2 * size, generator=gen).to(device, dtype)
    residual = wide[:, size:] if summed else None
    index = torch.randint(0, count, (batch, 9), generator=gen, dtype=torch.int32).to(device)[:, 3]
    rows = torch.randperm(batch + 3, generator=gen)[:batch].to(device)
    for ops in both():
        kept = torch.full((batch + 3, size), 7.0, dtype=dtype, device=device)
        ops.keep_last(kept, rows, x, residual, index, count)
        wanted = torch.full_like(kept, 7.0)
        for b, row in enumerate(rows.tolist()):
            at = b * count + int(index[b])
            wanted[row] = x[at] if residual is None else x[at] + residual[at]
        tolerance = 0.0 if dtype is torch.float32 else 0.01  # of the interpreter's bfloat16
        torch.testing.assert_close(kept, wanted, rtol=tolerance, atol=0.0)


@devices
@pytest.mark.parametrize("count", [1, 3, 6])
@pytest.mark.parametrize("batch", [0, 1, 5])
def test_rows_of_an_accepted_path(device: str, count: int, batch: int) -> None:
    width, size = 6, 24
    gen = torch.Generator().manual_seed(8)
    states = torch.randn(batch * width, size, generator=gen).to(device)
    index = torch.randint(-1, width, (batch, width), generator=gen, dtype=torch.int32).to(device)
    for ops in both():
        found = ops.path_rows(states, index, count)
        wanted = [b * width + max(int(index[b, j]), 0) for b in range(batch) for j in range(count)]
        assert torch.equal(found, states[wanted].view(-1, size))
