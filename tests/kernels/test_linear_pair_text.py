"""The text of kernels/cuda/pair.cu on the host: every thread of a cluster, copies, barriers and products, and
the end of the kernel in front, in orders that are drawn. Results are right, nothing around them is
written, and a text that is wrong is seen."""

from __future__ import annotations

import random
import shutil

import pytest
import torch
from pair_on_host import gated, launch, pairs
from text_on_host import Built, Version

from engine.kernel_choices.plans import Plan
from kernels.linear_pair import _kernel

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
RIGHT = [Version(stages, bias) for stages in (2, 3) for bias in (False, True)]
WAIT, FIRST = "  front_has_ended();\n", "  Ring ahead = ring;"
ASKED = "fetch_tokens(ahead, &x, k, share);\n"
WRONG = [
    ("barrier_wait(ahead.emptied(), ahead.phase ^ 1)", "barrier_wait(ahead.emptied(), ahead.phase)"),
    ("      if (k) barrier_wait(ahead.emptied(), ahead.phase ^ 1);\n", ""),
    ("if (k) barrier_wait(ahead.emptied(), ahead.phase ^ 1)", "barrier_wait(ring.emptied(), ring.phase)"),
    ("barrier_wait(ring.filled(), ring.phase);", ""),
    ("barrier_expect(ring.filled(), STAGE_BYTES)", "barrier_expect(ring.filled(), X_BYTES + PART_BYTES)"),
    ("share.rank * PART_BYTES", "(1 - share.rank) * PART_BYTES"),
    ("share.rank * share.lines + share.first", "share.rank * share.lines"),
    ("k * COLUMNS, share.rank * TOKENS", "k * COLUMNS, 0"),
    ("READ_ONCE, 3,", "READ_ONCE, 1,"),
    ("(threadIdx.x & 127) < 2", "(threadIdx.x & 127) < 1"),
    ("barrier_init(ring.empty + 8 * s, 4)", "barrier_init(ring.empty + 8 * s, 2)"),
    ("products_wait<1>", "products_wait<2>"),
    ("products_wait<0>", "products_wait<1>"),
    ("if (k) release(ahead.emptied())", "release(ring.emptied())"),
    ("if (k) release(ahead.emptied())", "release(ahead.emptied())"),
    ("    if (k) release(ahead.emptied());\n", ""),
    ("threadIdx.x == 0 && k + STAGES - 1 < steps", "threadIdx.x == 0"),
    ("threadIdx.x == 0 && k + STAGES - 1 < steps", "threadIdx.x == 0 && k + STAGES < steps"),
    ("fetch_weights(ahead, w, k + STAGES - 1, share)", "fetch_weights(ahead, w, k + STAGES, share)"),
    ("fetch_weights(ahead, w, k + STAGES - 1, share)", "fetch_weights(ring, w, k + STAGES - 1, share)"),
    ("fetch_tokens(ahead, x, k + STAGES - 1, share)", "fetch_tokens(ahead, x, k + STAGES, share)"),
    ("fetch_tokens(ahead, x, k + STAGES - 1, share)", "fetch_tokens(ring, x, k + STAGES - 1, share)"),
    ("fetch_tokens(ahead, &x, k, share)", "fetch_tokens(ahead, &x, 0, share)"),
    ("  ahead = ring;\n", ""),
    ("threadIdx.x == 0 && k < (u32)steps", "threadIdx.x == 0"),
    ("k < STAGES - 1; k++, ahead.next()", "k < STAGES - 1; k++"),
    ("ring.next(), ahead.next()", "ring.next()"),
    ("ring, ahead, steps, &x", "ring, ring, steps, &x"),
    (
        "mma(gate, a + 2 * part, b + 2 * part, (k | part) != 0)",
        "mma(gate, a + 2 * part, b + 2 * part, k != 0)",
    ),
    ("(PART_BYTES >> 4) + 2 * part, (k | part) != 0", "(PART_BYTES >> 4) + 2 * part, part != 0"),
    ("b + (PART_BYTES >> 4) + 2 * part", "b + 2 * part"),
    ("mma(up, a + 2 * part", "mma(up, a"),
    ("group * 64 * LINE_BYTES", "0"),
    ("warp / 4", "0"),
    ("warp * 16 * LINES * 2", "warp * 8 * LINES * 2"),
    ("  groups_meet();", "  __syncwarp();"),
    ("share);\n  __syncwarp();\n  store", "share);\n  store"),
    ("share.first + eight * 8 >= share.lines", "share.first + eight * 8 + 8 >= share.lines"),
    ("token + row < tokens && at < lines", "at < lines"),
    ("token + row < tokens && at < lines", "token + row < tokens"),
    ("EIGHTS % 8 ? 3 : 7", "7"),
    ("share.rank * TOKENS + warp * 16", "warp * 16"),
    ("blockIdx.x / 2 * LINES", "blockIdx.x * LINES"),
    ("  __syncwarp();\n  cluster_sync();\n  Ring", "  Ring"),
    ("  __syncwarp();\n  cluster_sync();  // no", "  // no"),
    ("(shared_address(memory) + 1023) & ~1023u", "shared_address(memory)"),
    ("+ 1023) & ~1023u", "+ 2047) & ~1023u"),
    ("stage = 0; phase ^= 1;", "stage = 0;"),
    ("at[share.lines]", "at[0]"),
    ("rounded(up)", "up"),
    ("packed(left, right)", "packed(right, left)"),
    # The wait for the kernel in front.
    (WAIT, ""),
    (WAIT, "  if (threadIdx.x) front_has_ended();\n"),
    (WAIT, "  if (share.rank == 0) front_has_ended();\n"),
]
EDITS = [*((edit,) for edit in WRONG), ((WAIT, ""), (ASKED, f"{ASKED}{WAIT}"))]
BROKEN = [Version(3, True, edits) for edits in EDITS]
NEVER, SLOW = Version(2, False, ((WAIT, ""),)), Version(3, False, ((WAIT, ""), (FIRST, f"{WAIT}{FIRST}")))
# Of a wrong order not every drawn one shows it; more steps than stages, and fewer.
CASES = [(200, 464, 72), (129, 464, 520), (256, 464, 328), (200, 464, 8)] * 4
BEYOND = 136  # rows around the results, more than a block has tokens


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return pairs([*RIGHT, *BROKEN, NEVER, SLOW], tmp_path_factory.mktemp("pair"))


def problem(built: Built, version: Version, size: tuple[int, int, int], seed: int) -> str:
    """Why results are wrong for (T, N, K), or nothing. x is a view, among values that are no numbers."""
    tokens, n, k = size
    drawn = torch.Generator().manual_seed(seed)
    around, w, bias = (
        (torch.randint(-8, 9, shape, generator=drawn) / 8).bfloat16()
        for shape in ((tokens + 8, k + 8), (n, k), (n,))
    )
    around[tokens:], around[:, k:] = torch.nan, torch.nan
    x, room = around[:tokens, :k], torch.full((tokens + 2 * BEYOND, n // 2), 7.5).bfloat16()
    out = room[BEYOND : BEYOND + tokens]
    plan = Plan("pair", 256, 64, 8, version.stages, gate=True)
    assert not plan.problem(tokens, n, k)
    memory = _kernel(plan, torch.bfloat16, version.bias).shared_bytes
    early = seed % 4 != 3
    said = built.run(version, launch(x, w, bias, out, memory, early=early), seed)
    expected = gated(x, w, bias if version.bias else None)
    if said:
        return said
    if not bool((room[:BEYOND] == 7.5).all() and (room[BEYOND + tokens :] == 7.5).all()):
        return "something around the results was written"
    near = torch.isclose(out.float(), expected.float(), rtol=1e-2, atol=1e-6)
    few = (out != expected).float().mean() < 1e-3  # exp of another library
    return "" if bool(near.all() and few) else "results are wrong"


def some(seed: int) -> tuple[int, int, int]:
    chance = random.Random(seed)
    n = 16 * chance.choice((1, 2, 7, 8, 9, 13, 14, 15, 22, 28, 29, 62))
    return chance.choice((129, 130, 191, 192, 200, 255, 256)), n, 8 * chance.choice((1, 7, 8, 9, 24, 40, 65))


@needs_compiler
@pytest.mark.parametrize("seed", range(36))
def test_every_result_is_right_and_nothing_else_is_written(built: Built, seed: int) -> None:
    assert problem(built, RIGHT[seed % len(RIGHT)], some(seed), seed) == ""


@needs_compiler
def test_orders_that_show_a_wrong_text_do_not_harm_the_right_one(built: Built) -> None:
    assert [problem(built, RIGHT[-1], size, seed) for seed, size in enumerate(CASES)] == [""] * len(CASES)


@needs_compiler
@pytest.mark.parametrize("version", BROKEN, ids=lambda version: version.edits[0][0][:40].strip())
def test_a_wrong_text_is_seen(built: Built, version: Version) -> None:
    assert any(problem(built, version, size, seed) for seed, size in enumerate(CASES))


def ahead(built: Built, version: Version, k: int) -> tuple[str, int]:
    """What went wrong behind a kernel that ends when all else waits, and bytes of W asked for until then."""
    x, w = torch.zeros(130, k).bfloat16(), torch.zeros(2 * 232, k).bfloat16()
    out, plan = torch.zeros(130, 232).bfloat16(), Plan("pair", 256, 64, 8, version.stages, gate=True)
    memory = _kernel(plan, torch.bfloat16, False).shared_bytes
    return built.run(version, launch(x, w, w, out, memory, last=True), 0), built.ahead()


@needs_compiler
@pytest.mark.parametrize("k", [8, 64, 128, 520])
def test_weights_are_on_their_way_before_the_kernel_in_front_ends(built: Built, k: int) -> None:
    """All but one stage, in both blocks of either cluster."""
    for stages in (2, 3):
        filled = min(stages - 1, -(-k // 64))
        assert ahead(built, Version(stages), k) == ("", 2 * 2 * filled * 2 * 224 * 128)
    assert ahead(built, SLOW, k) == ("", 0)


@needs_compiler
def test_a_block_that_ends_without_the_wait_is_seen_in_every_order(built: Built) -> None:
    """The next kernel would take its end for that of all in front."""
    for seed in (0, 1, 2, 4, 5, 6):
        assert problem(built, NEVER, (129, 464, 72), seed) in (
            "a block ends without the wait", "a store to what the kernel in front still uses",
        )  # fmt: skip
