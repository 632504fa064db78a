# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803
"""Moves the KV of accepted tree nodes to the front of their window, in every layer at once.

The buffers of the layers are found through a table of addresses on the device, so that one launch reaches all
of them. Knows slots, not pages. Legend: B requests, W width (nodes), E elements a slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import INTERPRETED, dependent, enter, jit, power_of_two, warps_for

_GPU_ELEMENTS = 4096  # of a tile: all nodes of a window times a part of their elements


@jit
def _compact_kv(
    address_ptr, slots_ptr, index_ptr, like_ptr, slots_row, index_row,
    W: tl.constexpr, W_P: tl.constexpr, E: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Grid: (requests, buffers, blocks of E). A program holds its part of all nodes before it writes any.
    enter(PDL)
    request = tl.program_id(0).to(tl.int64)
    node = tl.arange(0, W_P)
    source = tl.load(index_ptr + request * index_row + node, mask=node < W, other=-1)
    moves = (source >= 0) & (source != node)
    if tl.sum(moves.to(tl.int32), axis=0) == 0:
        return
    buffer = tl.multiple_of(tl.load(address_ptr + tl.program_id(1)).to(like_ptr.dtype), 16)
    own = slots_ptr + request * slots_row
    old = tl.load(own + source, mask=moves, other=0).to(tl.int64) * E
    new = tl.load(own + node, mask=moves, other=0).to(tl.int64) * E
    element = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = moves[:, None] & (element < E)[None, :]
    held = tl.load(buffer + old[:, None] + element[None, :], mask=inside, other=0.0)
    tl.debug_barrier()  # a target may be the source of another node, held by another thread
    tl.store(buffer + new[:, None] + element[None, :], held, mask=inside)


@dataclass(frozen=True)
class Buffers:
    """Buffers of one shape and dtype [slots, ..., contiguous], and their addresses: int64 [n] on the device.
    The tensors are kept, so that the addresses stay true."""

    tensors: tuple[Tensor, ...]
    addresses: Tensor

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Buffers:
        first = tensors[0]
        assert all(t.is_contiguous() and t.data_ptr() % 16 == 0 for t in tensors)
        assert len({(t.shape, t.dtype, t.device) for t in tensors}) == 1
        addresses = torch.tensor([t.data_ptr() for t in tensors], dtype=torch.int64, device=first.device)
        return cls(tuple(tensors), addresses)


def compact_kv(buffers: Buffers, slots: Tensor, accept_index: Tensor, *, early: bool = False) -> None:
    """Copy what slots[b, accept_index[b, j]] holds to slots[b, j], for every j with accept_index >= 0.

    slots: int64 [B, W], of each request's window; accept_index: int32 [B, W]; both with a contiguous last
    axis. A slot may be a source and a target; windows of different requests must not overlap.
    """
    batch, width = slots.shape
    if batch == 0:
        return
    like = buffers.tensors[0]
    elements = like[0].numel()
    side, block = power_of_two(width), power_of_two(elements)
    if not INTERPRETED:
        block = min(block, max(16, _GPU_ELEMENTS // side))
    _compact_kv[(batch, len(buffers.tensors), triton.cdiv(elements, block))](
        buffers.addresses, slots, accept_index, like, slots.stride(0), accept_index.stride(0),
        W=width, W_P=side, E=elements, BLOCK=block, num_warps=warps_for(side * block), **dependent(early),
    )  # fmt: skip
