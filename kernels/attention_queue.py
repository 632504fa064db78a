"""Decode of very many requests on Hopper, in CUDA C++ (kernels/cuda/attention_queue.cu): programs that stay
take request after request, so that copies never stop between them.

What `attention_stream` loses where requests and KV heads are several times as many as run at once: a program
begins with a chain of reads (length, row, page) before its first copy, and ends computing, with none left.
Knows one new token a request, no tree, no window and no split. Legend: B requests, D head size.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from engine.batch import ForwardBatch, LayerKV
from kernels.attention_tile import LOG2_E
from kernels.cuda.compile import Source
from kernels.cuda.driver import tensor_map
from kernels.cuda.kernel import CudaKernel
from kernels.cuda.wgmma import mma

DTYPES = (torch.bfloat16, torch.float16)
DIM = 128
MOST_HEADS = 8  # query heads of a KV head: columns of the matrix units
LEAST_PAGE = 8  # tokens that are copied at once
_UNITS = 6  # blocks of 64 keys or values in flight; with twice the programs, all of shared memory
_UNIT_BYTES, _QUERY_BYTES, _ALIGNMENT = 16 << 10, 7 << 10, 1 << 10  # of two sets of queries, weights, results
_THREADS = 160
QUEUE = 2  # counters, int32


def queues(q: Tensor, kv: LayerKV, batch: ForwardBatch, page_size: int) -> bool:
    """Whether the kernel computes such a pass, wherever it can be used (kernels.cuda.available)."""
    kv_heads, dim = kv.k.shape[1], q.shape[2]
    pages = page_size >= LEAST_PAGE and page_size & (page_size - 1) == 0
    plain = batch.width == 1 and batch.tree_mask is None and batch.window_slots is None
    heads = q.shape[1] // kv_heads <= MOST_HEADS
    return plain and pages and heads and dim == DIM and q.dtype in DTYPES


def attention_queue(
    q: Tensor, kv: LayerKV, batch: ForwardBatch, scale: float, page_size: int, queue: Tensor, programs: int,
    *, early: bool = False,
) -> Tensor:  # fmt: skip
    """q [B, Hq, 128], last axis contiguous -> [B, Hq, 128], of a pass that `queues`. The KV of the new tokens
    must be in `kv`. queue: int32 [2], zero before and after, of launches one after another; programs: that
    run at once. early: old keys and values are copied while the kernel in front ends
    (kernels.launch.dependent). Raises CudaCompileError, CudaDriverError."""
    (requests, heads, dim), (slots, kv_heads, _) = q.shape, kv.k.shape
    group, items = heads // kv_heads, requests * kv_heads
    half, bytes_of = dim // 2, q.element_size()
    queries = tensor_map(
        q, (half, heads, 2, requests), (q.stride(1) * bytes_of, half * bytes_of, q.stride(0) * bytes_of),
        (half, group, 1, 1),
    )  # fmt: skip
    sides = [
        tensor_map(
            side, (half, 8, 2 * kv_heads, slots // 8), (row, half * bytes_of, 8 * row), (half, 8, 2, 1)
        )
        for side, row in ((side, side.stride(0) * bytes_of) for side in (kv.k, kv.v))
    ]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    table, lens = batch.page_table, batch.seq_lens.device
    kernel(kv_heads, group, page_size, q.dtype)(
        min(items, programs),
        (queries, *sides, out, table, batch.rows, lens, queue, items, table.stride(0), scale * LOG2_E),
        early=early,
    )
    return out


@functools.cache
def kernel(kv_heads: int, group: int, page_size: int, dtype: torch.dtype) -> CudaKernel:
    """The kernel for such heads and pages."""
    bfloat = dtype == torch.bfloat16
    defines = {
        "BF": int(bfloat), "UNITS": _UNITS, "KV_HEADS": kv_heads, "GROUP": group, "PAGE": page_size,
    }  # fmt: skip
    source = Source("attention_queue.cu", defines, mma([8], bfloat))
    return CudaKernel(source, "attention_queue", _THREADS, _UNITS * _UNIT_BYTES + _QUERY_BYTES + _ALIGNMENT)
