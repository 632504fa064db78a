"""The text of kernels/cuda/attention_queue.cu on the host: every thread of several programs, copies,
barriers, products, the queue and the end of the kernel in front, in orders that are drawn. Results are right,
whoever takes what, nothing else is read or written, and a text that is wrong is seen."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from queue_on_host import Built, Version, build
from queue_passes import problem

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
    ("(reach + KEYS - 1) / KEYS;\n    const", "(reach + KEYS) / KEYS;\n    const"),
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
    ("barrier_wait(ring.full + 8 * ring.unit, ring.phase);\n      settled", "settled"),
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
    ("step != 0", "0"),
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
    ("across<true>(total", "across<false>(total"),
    # Results.
    ("(i64)at * RESULTS", "(i64)at * HEAD * 2"),
    ("weights + WEIGHTS", "queries"),
    ("(head * HEAD + place) * 2", "(head * 64 + place) * 2"),
    ("    meet();\n    if (piece", "    if (piece"),
    ("piece = threadIdx.x * 16", "piece = threadIdx.x * 32"),
    ("if (piece < RESULTS)", "if (piece + 16 < RESULTS)"),
    ("if (piece < RESULTS)", ""),
    ("i / 4 * 64 + key + i % 4 / 2 * 8", "i / 4 * 64 + key"),
    ("(shared_address(memory) + 1023) & ~1023u", "shared_address(memory)"),
    ("+ 1023) & ~1023u", "+ 2047) & ~1023u"),
    # How much is copied before queries are there, without which nothing is given back.
    ("min(item.length / (int)KEYS,", "min(reach / (int)KEYS,"),
    ("min(item.length / (int)KEYS,", "min(blocks,"),
    ("min(item.length / (int)KEYS, (int)UNITS / 2)", "item.length / (int)KEYS"),
]  # fmt: skip
WRONG_AHEAD = [  # where a program is a request or two ahead of its copies
    ("if (turn >= 2) barrier_wait(asked.empty", "if (turn >= 3) barrier_wait(asked.empty"),
    ("if (turn >= 2) barrier_wait(asked.empty + 8 * slot, ((turn >> 1) - 1) & 1);", ""),
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
    replace(version, edits=(edit,))
    for version, edits in ((USUAL, WRONG), (AHEAD, WRONG_AHEAD), (TIGHT, WRONG_TIGHT))
    for edit in edits
]
TRIES = 40  # of a wrong order not every drawn one shows it


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build([*RIGHT, *BROKEN], tmp_path_factory.mktemp("queue"))


@needs_compiler
@pytest.mark.parametrize("seed", range(48))
def test_every_result_is_right_and_nothing_else_is_touched(built: Built, seed: int) -> None:
    assert problem(built, RIGHT[seed % len(RIGHT)], seed, early=seed % 4 != 3) == ""


@needs_compiler
@pytest.mark.parametrize("version", BROKEN, ids=lambda version: version.edits[0][0][:50].strip())
def test_a_wrong_text_is_seen(built: Built, version: Version) -> None:
    assert any(problem(built, version, seed) for seed in range(TRIES))


@needs_compiler
def test_passes_that_show_a_wrong_text_do_not_harm_the_right_one(built: Built) -> None:
    for right in (USUAL, AHEAD, TIGHT):
        assert [problem(built, right, seed) for seed in range(TRIES)] == [""] * TRIES
