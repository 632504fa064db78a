"""The text of kernels/cuda/attention_queue.cu on the host, launched while the kernel in front of it ends:
what it copies until then, what it leaves alone, and that texts are seen which are wrong only there."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from queue_on_host import Built, Version, build
from queue_passes import EDGES, EIGHT_BYTES, launched, on_host, problem
from test_attention_stream import Pass

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
RIGHT = Version(2, 3, 16, units=8)  # all blocks of any request
ROOMS = [replace(RIGHT, units=units) for units in (1, 6, 8)]
WAIT = "        if (turn == 0) front_has_ended();\n"
TAKEN = "          place = atomicAdd(queue, 1) + gridDim.x;\n"
FOLLOWING = "        more = following.take(__shfl_sync(~0u, place, 0), batch, lane);\n"
LAST, COMPUTE = "    }\n    item = following;", "    front_has_ended();\n    consume"
WRONG = [
    ((WAIT, ""),),
    ((WAIT, "        if (turn == 0 && lane) front_has_ended();\n"),),
    ((WAIT, ""), (TAKEN, f"  {WAIT}{TAKEN}")),  # queries are asked for before the wait
    ((COMPUTE, f"    if (threadIdx.x == 0) out[blockIdx.x * GROUP * HEAD] = 0;\n{COMPUTE}"),),
    ((TAKEN, ""), ("place = 0;", "place = lane ? 0 : atomicAdd(queue, 1) + gridDim.x;")),
    (  # a block with the new token is copied, then come the wait and the queries
        ("if (block == ahead) {", "auto ask = [&] {"),
        (f"{TAKEN}        }}\n      }}", f"{TAKEN}        }}\n      }};"),
        (FOLLOWING, ""),
        (LAST, f"      if (block == ahead) ask();\n      if (block + 1 == blocks)\n{FOLLOWING}{LAST}"),
    ),
]  # fmt: skip
BROKEN = [replace(RIGHT, edits=edits) for edits in WRONG]
NEVER = replace(RIGHT, edits=((WAIT, ""), (COMPUTE, "    consume")))
SLOW = replace(RIGHT, edits=(("turn ? 0 : min(item.length / (int)KEYS, (int)UNITS / 2)", "0"),))
TRIES = 16  # not every drawn order shows it


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build([*ROOMS, *BROKEN, NEVER, SLOW], tmp_path_factory.mktemp("early"))


@needs_compiler
def test_orders_that_show_a_wrong_text_do_not_harm_the_right_one(built: Built) -> None:
    assert [problem(built, RIGHT, seed) for seed in range(TRIES)] == [""] * TRIES


@needs_compiler
@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_a_text_that_is_wrong_while_the_kernel_in_front_runs_is_seen(built: Built, number: int) -> None:
    assert any(problem(built, BROKEN[number], seed) for seed in range(TRIES))
    assert [problem(built, BROKEN[number], seed, early=False) for seed in range(5)] == [""] * 5


@needs_compiler
def test_a_program_that_ends_without_the_wait_is_seen_in_every_order(built: Built) -> None:
    """The next kernel would take its end for that of all in front."""
    assert all(problem(built, NEVER, seed) for seed in range(TRIES))


@needs_compiler
@pytest.mark.parametrize("length", EDGES)
def test_old_keys_and_values_are_on_their_way_before_the_kernel_in_front_ends(
    built: Built, length: int
) -> None:
    """Of the first request of a program: whole blocks, as many as there is room for."""
    for version in (*ROOMS, SLOW):
        q, kv, batch = Pass((length, 200), heads=2 * version.group, kv_heads=2).build()
        here = on_host(built, version, length, last=True)
        launched(here, q, kv, batch, 1, True)
        blocks = 0 if version is SLOW else min(length // 64, version.units // 2)
        assert (here.said, here.ahead) == ("", blocks * 2 * 8 * EIGHT_BYTES)
