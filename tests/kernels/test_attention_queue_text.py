"""The text of kernels/cuda/attention_queue.cu on the host: every thread of several programs, copies,
barriers, products and the queue, in orders that are drawn. Results are right, whoever takes what, nothing
else is read or written, and a text that is wrong is seen."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace

import pytest
import torch
from queue_on_host import Built, OnHost, Version, build, mapped
from test_attention_stream import Pass, reference
from torch import Tensor

import kernels.attention_queue as queue_module
from engine.batch import ForwardBatch, LayerKV
from kernels.attention_queue import _UNITS, attention_queue, kernel, queues

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
RIGHT = [
    Version(2, 7, 16, units=3),
    Version(2, 3, 16),
    Version(2, 3, 16, units=1),
    Version(2, 4, 16),
    Version(1, 1, 8),
    Version(3, 3, 64),
    Version(2, 7, 256),
    Version(1, 8, 32),
    Version(2, 2, 16, units=2),  # programs that wait for room all the time
    Version(2, 5, 128, units=3),
    Version(1, 6, 16, units=1),
]
NEXT = "      ring.next();\n"
GIVEN_BACK = f"      if (lane == 0) barrier_arrive(ring.empty + 8 * ring.unit);\n{NEXT}"
WRONG = [
    # The queue: what is taken, and what is left behind.
    ("atomicAdd(queue, 1) + gridDim.x", "atomicAdd(queue, 1)"),
    ("at >= batch.items", "at > batch.items"),
    ("item.take(blockIdx.x", "item.take(0"),
    ("== gridDim.x - 1) queue[0] = 0, queue[1] = 0", "== gridDim.x) queue[0] = 0, queue[1] = 0"),
    ("queue[0] = 0, queue[1] = 0", "queue[0] = 0"),
    ("queue[0] = 0, queue[1] = 0", "queue[1] = 0"),
    ("ended_before(queue + 1) == gridDim.x - 1", "ended_before(queue + 1) == 0"),
    ("asked.told[slot][1] = 0, barrier_arrive", "barrier_arrive"),
    ("    item = following;\n", ""),
    # What a program reads of the batch, and copies.
    ("item.at % KV_HEADS", "item.at / KV_HEADS % KV_HEADS"),
    ("if ((int)(lane % 8 * 8) <= length) page", "page"),
    ("if (position < reach) item.page", "item.page"),
    ("item.page = read(batch.table + item.row + position / PAGE)", "item.page++"),
    ("* batch.table_row", "* (batch.table_row - 1)"),
    ("read(batch.lens + at / KV_HEADS)", "read(batch.lens + at)"),
    ("% PAGE / 8", "/ 8"),
    ("(reach + KEYS - 1) / KEYS;\n    int", "(reach + KEYS) / KEYS;\n    int"),
    ("min(8, (reach", "min(7, (reach"),
    ("* (int)KEYS + 7) / 8)", "* (int)KEYS) / 8)"),
    ("side ? values : keys", "keys"),
    ("0, 0, head * 2, eight", "0, 0, head, eight"),
    ("0, head * GROUP, half, request", "0, head, half, request"),
    ("0, head * GROUP, half, request", "0, head * GROUP, 0, request"),
    ("ring.place() + lane * EIGHT", "ring.place()"),
    ("2 * GROUP * 128)", "GROUP * 128)"),
    ("2 * GROUP * 128)", "2 * 8 * 128)"),
    ("eights * EIGHT)", "8 * EIGHT)"),
    # Barriers.
    ("((turn >> 1) - 1) & 1", "(turn >> 1) & 1"),
    ("barrier_wait(asked.full + 8 * slot, (turn >> 1) & 1);", ""),
    ("barrier_wait(asked.full + 8 * slot, (turn >> 1) & 1);", "barrier_wait(asked.full, turn & 1);"),
    ("barrier_wait(ring.empty + 8 * ring.unit, ring.phase ^ 1);", ""),
    ("ring.phase ^ 1", "ring.phase"),
    ("unit = 0, phase ^= 1", "unit = 0"),
    ("barrier_wait(ring.full + 8 * ring.unit, ring.phase);\n      products_begin", "products_begin"),
    ("barrier_wait(ring.full + 8 * ring.unit, ring.phase);\n      for", "for"),
    ("barrier_init(ring.empty + 8 * unit, WARPS)", "barrier_init(ring.empty + 8 * unit, 1)"),
    ("barrier_init(asked.empty + 8 * slot, WARPS)", "barrier_init(asked.empty + 8 * slot, 1)"),
    ("if (lane == 0) barrier_arrive(asked.empty + 8 * slot);", ""),
    ("if (lane == 0) barrier_arrive(ring.empty", "if (lane < 2) barrier_arrive(ring.empty"),
    ("  seen_by_units();\n  __syncthreads();", "  seen_by_units();"),
    # Scores, sums and values.
    ("? score[i] * scale : __int_as_float(0xff800000)", "? score[i] * scale : score[i] * scale"),
    ("(int)(key + i / 2 * 8) < live", "(int)(key + i / 2 * 8) <= live"),
    ("step / 4 * HALF + step % 4 * 32", "step % 4 * 32"),
    ("step != 0", "1"),
    ("descriptor(ring.place() + here, EIGHT)", "descriptor(ring.place() + here, HALF)"),
    ("top[i] = high[i];", ""),
    ("fmaxf(high[i], top[i])", "high[i]"),
    ("total[i] * shrink[i] + score", "total[i] + score"),
    ("score[i] + score[i + 2];", "score[i];"),
    ("acc[i / 4][i % 4] *= shrink[i % 2]", "acc[i / 4][i % 4] *= 1"),
    ("(place ^ line << 4)", "place"),
    ("if (lane < 4) between", "if (lane < 3) between"),
    ("other < WARPS", "other < WARPS - 1"),
    ("  meet();\n  a = between", "  a = between"),
    ("      seen_by_units();\n      meet();", "      seen_by_units();"),
    ("      seen_by_units();\n      meet();", "      meet();"),
    ("  seen_by_units();\n  __syncthreads();", "  __syncthreads();"),
    ("store_zeros(values + line);", ";"),
    ("i = live * 16 + threadIdx.x", "i = live * 16 + 16 + threadIdx.x"),
    ("i / 128 * EIGHT", "i / 128 * HALF"),
    ("values + i % 4 * 2 * EIGHT + i / 4 * HALF", "values + i % 4 * 2 * EIGHT"),
    ("weights + i % 4 * 32", "weights"),
    (f"products_wait<0>();\n{GIVEN_BACK}#", f"products_wait<1>();\n{GIVEN_BACK}#"),
    ("across<true>(total[0], total[1], sums)", "across<false>(total[0], total[1], sums)"),
    ("across<true>(total[0], total[1], sums)", "across<true>(total[0], total[1], tops)"),
    # Results.
    ("(i64)at * GROUP", "(i64)at"),
    ("i / 4 * 64 + key + i % 4 / 2 * 8", "i / 4 * 64 + key"),
    ("(shared_address(memory) + 1023) & ~1023u", "shared_address(memory)"),
    ("+ 1023) & ~1023u", "+ 2047) & ~1023u"),
]  # fmt: skip
WRONG_AHEAD = [  # where a program is a request or two ahead of its copies
    ("if (turn >= 2) barrier_wait(asked.empty", "if (turn >= 3) barrier_wait(asked.empty"),
    ("if (turn >= 2) barrier_wait(asked.empty + 8 * slot, ((turn >> 1) - 1) & 1);", ""),
    ("if (head < GROUP) out", "out"),
]
WRONG_TIGHT = [  # where the next copy goes to where this one went
    (
        f"products_wait<0>();\n{GIVEN_BACK}#",
        f"{GIVEN_BACK.replace(NEXT, '')}      products_wait<0>();\n{NEXT}#",
    ),
    (
        f"products_wait<0>();\n{GIVEN_BACK}    }}",
        f"{GIVEN_BACK.replace(NEXT, '')}      products_wait<0>();\n{NEXT}    }}",
    ),
]
USUAL, AHEAD, TIGHT = Version(2, 7, 16, units=3), Version(2, 3, 16), Version(2, 3, 16, units=1)
BROKEN = [
    replace(version, here=here, wrong=wrong)
    for version, edits in ((USUAL, WRONG), (AHEAD, WRONG_AHEAD), (TIGHT, WRONG_TIGHT))
    for here, wrong in edits
]
EIGHT_BYTES = 8 * 128 * 2  # of keys, or values
TRIES = 40  # of a wrong order not every drawn one shows it
EDGES = (0, 1, 7, 8, 15, 16, 31, 55, 62, 63, 64, 65, 71, 127, 128, 129, 200)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build([*RIGHT, *BROKEN], tmp_path_factory.mktemp("queue"))


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


def problem(built: Built, version: Version, seed: int) -> str:
    """Why the results of a drawn pass are wrong, or nothing."""
    chance = random.Random(seed)
    programs, requests = chance.choice((1, 2, 3, 5)), chance.choice((1, 3, 4, 6))
    q, kv, batch = world(version, chance, requests)
    q *= chance.choice((1, 64))  # of scores far apart, a few keys take all
    wide = torch.full((batch.size, q.shape[1] + 3, 128), torch.nan, dtype=q.dtype)
    wide[:, 1:-2] = q
    assert queues(q, kv, batch, version.page)
    shared = kernel(version.kv_heads, version.group, version.page, q.dtype).shared_bytes
    here = OnHost(built, version, shared - (_UNITS - version.units) * (16 << 10), seed)
    queue = torch.zeros(2, dtype=torch.int32)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(queue_module, "kernel", lambda *what: here)
        patched.setattr(queue_module, "tensor_map", mapped)
        out = attention_queue(wide[:, 1:-2], kv, batch, 128**-0.5, version.page, queue, programs)
    if here.said:
        return here.said
    if queue.any():
        return "the queue is not empty"
    eights = sum(length // 8 + 1 for length in batch.seq_lens.bound)
    if here.copied != q.numel() * 2 + version.kv_heads * eights * 2 * EIGHT_BYTES:
        return f"{here.copied} bytes are copied"
    expected = reference(q, kv, batch, 128**-0.5)
    error = (out.double() - expected).abs().max()
    return "" if error < 2e-2 else f"results are wrong by {error}"


@needs_compiler
@pytest.mark.parametrize("seed", range(48))
def test_every_result_is_right_and_nothing_else_is_touched(built: Built, seed: int) -> None:
    assert problem(built, RIGHT[seed % len(RIGHT)], seed) == ""


@needs_compiler
@pytest.mark.parametrize("version", BROKEN, ids=lambda version: version.here[:50].strip())
def test_a_wrong_text_is_seen(built: Built, version: Version) -> None:
    assert any(problem(built, version, seed) for seed in range(TRIES))


@needs_compiler
def test_passes_that_show_a_wrong_text_do_not_harm_the_right_one(built: Built) -> None:
    for right in (USUAL, AHEAD, TIGHT):
        assert [problem(built, right, seed) for seed in range(TRIES)] == [""] * TRIES
