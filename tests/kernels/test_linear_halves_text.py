"""The text of kernels/cuda/halves.cu on the host: every thread of a cluster, copies, barriers, products
and what blocks hand each other, in orders that are drawn. Results are right, nothing around them is
written, and a text that is wrong is seen."""

from __future__ import annotations

import random
import shutil

import pytest
import torch
from halves_on_host import halved, launch
from text_on_host import Built, Version

from engine.kernel_choices.plans import Plan
from kernels.linear_halves import _kernel

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
RIGHT = [Version(stages, bias) for stages in (2, 4, 6) for bias in (False, True)]
HANDED = "  cluster_sync();\n#pragma"
WRONG = [
    ("barrier_wait(ring.emptied(), ring.phase ^ 1)", "barrier_wait(ring.emptied(), ring.phase)"),
    ("barrier_wait(ring.emptied(), ring.phase ^ 1);", ""),
    ("barrier_wait(ring.filled(), ring.phase);", ""),
    ("barrier_expect(ring.filled(), STAGE_BYTES)", "barrier_expect(ring.filled(), X_BYTES)"),
    ("READ_ONCE, k * COLUMNS", "READ_ONCE, (k - share.half * share.steps) * COLUMNS"),
    ("READ_OFTEN, k * COLUMNS", "READ_OFTEN, (k - share.half * share.steps) * COLUMNS"),
    ("k = share.half * share.steps; k < (share.half + 1) * share.steps", "k = 0; k < share.steps"),
    ("k = share.half * share.steps; k", "k = share.half * share.steps + share.half; k"),
    ("k * COLUMNS, share.token", "k * COLUMNS, 0"),
    ("k * COLUMNS, share.line", "k * COLUMNS, 0"),
    ("threadIdx.x % 128 == 0", "threadIdx.x % 128 < 2"),
    ("barrier_init(ring.empty + 8 * s, 2)", "barrier_init(ring.empty + 8 * s, 1)"),
    ("products_wait<1>", "products_wait<2>"),
    ("products_wait<0>();", ""),
    ("if (k) release(before)", "release(ring.emptied())"),
    ("(k | part) != 0", "k != 0"),
    ("a + 2 * part", "a"),
    ("group * 64 * LINE_BYTES", "0"),
    ("half ^ 1", "half"),
    ("(threadIdx.x - 128) * 16, theirs", "(threadIdx.x & 127) * 16, theirs"),
    ("n * 1024", "n * 512"),
    ("half ? sums[i] : sums[j]", "half ? sums[j] : sums[i]"),
    ("half ? sums[i + OWN / 2] : sums[i]", "half ? sums[i] : sums[i + OWN / 2]"),
    ("half ? sums[i + OWN / 2] : sums[i]", "sums[i]"),
    (") + more[i - n]", ")"),
    ("    groups_meet();", ""),
    ("warp * 16 * OWN * 2", "warp * 16 * OWN"),
    ("share.line + share.half * OWN", "share.line"),
    ("    __syncwarp();\n    store", "    store"),
    ("token + row < tokens && at < lines", "at < lines"),
    ("token + row < tokens && at < lines", "token + row < tokens"),
    ("cluster % blocks", "cluster / blocks"),
    ("cluster / blocks * LINES", "cluster * LINES"),
    ("blockIdx.x / 2", "blockIdx.x"),
    ("  __syncwarp();\n  cluster_sync();\n  if", "  if"),
    ("(shared_address(memory) + 1023) & ~1023u", "shared_address(memory)"),
    ("+ 1023) & ~1023u", "+ 2047) & ~1023u"),
    ("stage = 0; phase ^= 1;", "stage = 0;"),
    ("left = widened(at[0])", "left = widened(at[1])"),
    ("packed(sums[n] + left, sums[n + 1] + right)", "packed(sums[n + 1] + right, sums[n] + left)"),
]
EDITS = [
    *((edit,) for edit in WRONG),
    ((HANDED, "#pragma"), ("    cluster_sync();  // that", "    // that")),  # sums are read at once
]
BROKEN = [Version(4, True, edits) for edits in EDITS]
# (T, N, K). Of a wrong order not every drawn one shows it; more steps of a half than stages, and fewer.
CASES = [(200, 264, 72), (129, 264, 1160), (256, 136, 840), (200, 264, 8)] * 4
BEYOND = 136  # rows around the results, more than a block has tokens


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return halved([*RIGHT, *BROKEN], tmp_path_factory.mktemp("halves"))


def problem(built: Built, version: Version, size: tuple[int, int, int], seed: int) -> str:
    """Why results are wrong for (T, N, K), or nothing. x is a view, among values that are no numbers.
    Sums are exact: of eighths of at most 1, and few."""
    tokens, n, k = size
    drawn = torch.Generator().manual_seed(seed)
    around, w, bias = (
        (torch.randint(-8, 9, shape, generator=drawn) / 8).bfloat16()
        for shape in ((tokens + 8, k + 8), (n, k), (n,))
    )
    around[tokens:], around[:, k:] = torch.nan, torch.nan
    x, room = around[:tokens, :k], torch.full((tokens + 2 * BEYOND, n), 7.5).bfloat16()
    out = room[BEYOND : BEYOND + tokens]
    plan = Plan("halves", 128, 64, 8, version.stages)
    assert not plan.problem(tokens, n, k)
    memory = _kernel(plan, torch.bfloat16, version.bias).shared_bytes
    said = built.run(version, launch(x, w, bias, out, memory), seed)
    if said:
        return said
    if not bool((room[:BEYOND] == 7.5).all() and (room[BEYOND + tokens :] == 7.5).all()):
        return "something around the results was written"
    sums = x.double() @ w.double().T + (bias.double() if version.bias else 0)
    return "" if torch.equal(out, sums.bfloat16()) else "results are wrong"


def some(seed: int) -> tuple[int, int, int]:
    chance = random.Random(seed)
    n = 8 * chance.choice((1, 2, 7, 8, 9, 15, 16, 17, 32, 33))
    k = 8 * chance.choice((1, 7, 8, 9, 16, 17, 24, 40, 65, 130))
    return chance.choice((129, 130, 191, 192, 200, 255, 256)), n, k


@needs_compiler
@pytest.mark.parametrize("seed", range(36))
def test_every_result_is_right_and_nothing_else_is_written(built: Built, seed: int) -> None:
    assert problem(built, RIGHT[seed % len(RIGHT)], some(seed), seed) == ""


@needs_compiler
def test_orders_that_show_a_wrong_text_do_not_harm_the_right_one(built: Built) -> None:
    right = RIGHT[RIGHT.index(Version(4, True))]
    assert [problem(built, right, size, seed) for seed, size in enumerate(CASES)] == [""] * len(CASES)


@needs_compiler
@pytest.mark.parametrize("version", BROKEN, ids=lambda version: version.edits[0][0][:40].strip())
def test_a_wrong_text_is_seen(built: Built, version: Version) -> None:
    assert any(problem(built, version, size, seed) for seed, size in enumerate(CASES))
