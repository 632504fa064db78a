"""Drawn passes for texts of kernels/cuda/attention_queue.cu on a host, and what is wrong with results."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from queue_on_host import Built, OnHost, Version, mapped
from test_attention_stream import Pass, reference
from torch import Tensor

import kernels.attention_queue as queue_module
from engine.batch import ForwardBatch, LayerKV
from kernels.attention_queue import _UNITS, attention_queue, kernel, queues

EIGHT_BYTES = 8 * 128 * 2  # of keys, or values
EDGES = (0, 1, 7, 8, 15, 16, 31, 55, 62, 63, 64, 65, 71, 127, 128, 129, 200)


def world(version: Version, chance: random.Random, requests: int) -> tuple[Tensor, LayerKV, ForwardBatch]:
    """Requests whose lengths are edges, in rows of a table that holds no more than they need, two of them
    padding, and pools that are parts of others, each of its own; what no request reads is no number, and what
    no page holds is no page."""
    lens = tuple(chance.choices(EDGES[: chance.choice((5, len(EDGES)))], k=requests))
    case = Pass(lens, heads=version.kv_heads * version.group, kv_heads=version.kv_heads, page=version.page)
    rows = torch.tensor(chance.sample(range(1, requests + 1), requests))
    q, kv, batch = case.build(rows)
    for row, length in zip(rows, lens, strict=True):
        batch.page_table[row, length // version.page + 1 :] = 1 << 20
    if requests > 2:
        batch.rows[1:3], batch.seq_lens.device[1:3] = 0, 0
        for side in (kv.k, kv.v):
            side[0] = torch.randn(side[0].shape).to(side.dtype)
        batch = replace(batch, seq_lens=replace(batch.seq_lens, bound=(lens[0], 0, 0, *lens[3:])))
    wide = [torch.full((len(kv.k), version.kv_heads + n, 128), torch.nan, dtype=q.dtype) for n in (1, 3)]
    for around, side in zip(wide, (kv.k, kv.v), strict=True):
        around[:, 1 : version.kv_heads + 1] = side
    k, v = (around[:, 1 : version.kv_heads + 1] for around in wide)
    return q, LayerKV(0, k, v), batch


def launched(here: OnHost, q: Tensor, kv: LayerKV, batch: ForwardBatch, programs: int, early: bool) -> Tensor:
    """By its launcher, behind a kernel that writes queries, the new tokens' keys and values, and the queue,
    as one does that has its counters there too."""
    version, queue = here.version, torch.zeros(2, dtype=torch.int32)
    lens = batch.seq_lens.device
    pages = batch.page_table[batch.rows, lens // version.page]
    slots = set((pages * version.page + lens % version.page).tolist())
    here.written = (q, queue, *(side[slot] for side in (kv.k, kv.v) for slot in slots))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(queue_module, "kernel", lambda *what: here)
        patched.setattr(queue_module, "tensor_map", mapped)
        out = attention_queue(q, kv, batch, 128**-0.5, version.page, queue, programs, early=early)
    here.said += "the queue is not empty" * bool(queue.any() and not here.said)
    return out


def on_host(built: Built, version: Version, seed: int, **given: bool) -> OnHost:
    shared = kernel(version.kv_heads, version.group, version.page, torch.bfloat16).shared_bytes
    return OnHost(built, version, shared - (_UNITS - version.units) * (16 << 10), seed, **given)


def problem(built: Built, version: Version, seed: int, *, early: bool = True) -> str:
    """Why the results of a drawn pass are wrong, or nothing."""
    chance = random.Random(seed)
    programs, requests = chance.choice((1, 2, 3, 5)), chance.choice((1, 3, 4, 6))
    q, kv, batch = world(version, chance, requests)
    q *= chance.choice((1, 64))  # of scores far apart, a few keys take all
    wide = torch.full((batch.size, q.shape[1] + 3, 128), torch.nan, dtype=q.dtype)
    wide[:, 1:-2] = q
    assert queues(q, kv, batch, version.page)
    here = on_host(built, version, seed)
    out = launched(here, wide[:, 1:-2], kv, batch, programs, early)
    if here.said:
        return here.said
    eights = sum(length // 8 + 1 for length in batch.seq_lens.bound)
    if here.copied != q.numel() * 2 + version.kv_heads * eights * 2 * EIGHT_BYTES:
        return f"{here.copied} bytes are copied"
    expected = reference(q, kv, batch, 128**-0.5)
    error = (out.double() - expected).abs().max()
    return "" if error < 2e-2 else f"results are wrong by {error}"
