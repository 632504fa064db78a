# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# ruff: noqa: N803
"""Kernels in CUDA C++ that start while the kernel in front is still at work: they read nothing that it has
yet to write, and write nothing that it may still read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import triton.language as tl
from linear_cases import operands
from test_attention_stream import Pass, on_hopper
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engine.kernel_choices.plans import Plan
from kernels.attention_queue import attention_queue
from kernels.cuda.available import why_not
from kernels.launch import jit
from kernels.linear import product

PAIR = Plan("pair", 256, 64, 8, 3, gate=True)
SPINS = 400  # reads one after another: some 200 us, many times what the kernel behind takes to begin
ROW = 1024  # values that a program of the kernel in front writes
LENS = (300, 64, 63, 65, 192, 191, 193, 1, 2, 128, 127, 700)
gpu = pytest.param(True, marks=on_hopper)
early_or_not = pytest.mark.parametrize("early", [True, False], ids=["early", "plain"])


@pytest.fixture(autouse=True)
def _usable() -> None:
    if torch.cuda.is_available() and why_not():
        pytest.skip(why_not())


@jit
def _write_late(
    source_ptr, target_ptr, rows_ptr, watched_ptr, size, seen_ptr, SPINS: tl.constexpr, ROW: tl.constexpr
):  # fmt: skip
    # Lets the kernel behind start, and much later writes what that one reads. seen: whether its results were
    # there by then, behind a first number, which is 0.
    gdc_wait()
    gdc_launch_dependents()
    program = tl.program_id(0)
    zero = program * 0
    for _ in range(SPINS):
        zero += tl.load(seen_ptr + zero, volatile=True)  # each waits for the one before
    place = tl.arange(0, ROW)
    row = tl.load(rows_ptr + program)
    value = tl.load(source_ptr + row * ROW + place)
    watched = program * ROW + place
    result = tl.load(watched_ptr + watched, mask=watched < size, other=7, volatile=True)
    tl.store(seen_ptr + 1 + program, tl.max((result != 7).to(tl.int32), axis=0))
    tl.store(target_ptr + row * ROW + place, value)


def problems(target: Tensor, rows: Tensor, work: Callable[[], Tensor]) -> list[str]:
    """What goes wrong when `work` is launched behind a kernel that is late to write these rows, of ROW values
    each, of `target`. In a graph, as a step is."""
    source, alone = target.clone(), work().clone()
    seen = torch.zeros(len(rows) + 1, dtype=torch.int32, device="cuda")

    def write_late(watched: Tensor) -> None:
        _write_late[(len(rows),)](
            source, target, rows, watched, watched.numel(), seen, SPINS=SPINS, ROW=ROW, launch_pdl=True
        )

    write_late(alone)  # compiled before it is captured
    torch.cuda.synchronize()
    graph, found = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        watched = torch.full_like(alone, 7)
        place = watched.data_ptr()
        write_late(watched)
        del watched  # its memory is free for the results
        result = work()
    assert result.data_ptr() == place, "the kernel in front looks at other memory than the results'"
    for _ in range(3):
        target.view(-1, ROW)[rows] = torch.nan
        seen.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(target, source)
        found += ["other results"] * (not torch.equal(result, alone))
        found += ["results while the kernel in front was at work"] * bool(seen[1:].any())
    return found


@pytest.mark.parametrize("here", [gpu])
@early_or_not
def test_gated_products_wait_for_their_tokens(early: bool, here: bool) -> None:
    given = operands(256, 28672, 4096, "cuda", torch.bfloat16)
    x = given.x.contiguous()
    rows = torch.arange(x.numel() // ROW, device="cuda")
    assert problems(x, rows, lambda: product(PAIR, x, given.w, early=early)[0]) == []


@pytest.mark.parametrize("here", [gpu])
@pytest.mark.parametrize("programs", [3, 264])
@early_or_not
@pytest.mark.parametrize("late", ["queries", "keys", "values"])
def test_attention_waits_for_queries_and_new_keys(late: str, early: bool, programs: int, here: bool) -> None:
    """Old keys are there all along, and may be read; the new token's are not."""
    case = Pass(LENS, device="cuda")
    q, kv, batch = case.build()
    queue = torch.zeros(2, dtype=torch.int32, device="cuda")
    lens = batch.seq_lens.device.long()
    slots = batch.page_table[batch.rows, lens // case.page].long() * case.page + lens % case.page
    written = {"queries": q, "keys": kv.k, "values": kv.v}[late]
    assert kv.k[0].numel() == ROW
    rows = torch.arange(q.numel() // ROW, device="cuda") if late == "queries" else slots
    for side in (kv.k, kv.v):
        side.nan_to_num_(0)  # what no request reads; rows are compared as they are

    def work() -> Tensor:
        return attention_queue(q, kv, batch, case.scale, case.page, queue, programs, early=early)

    assert problems(written, rows, work) == []
    assert queue.tolist() == [0, 0]


@pytest.mark.parametrize("here", [gpu])
def test_a_kernel_that_does_not_wait_is_seen(here: bool) -> None:
    """A copy that starts early and waits for nothing."""
    x = torch.randn(64, ROW, device="cuda")
    rows = torch.arange(64, device="cuda")

    def work() -> Tensor:
        out = torch.empty_like(x)
        _copy[(64,)](x, out, ROW=ROW, launch_pdl=True)
        return out

    found = problems(x, rows, work)
    assert {"other results", "results while the kernel in front was at work"} <= set(found)


@jit
def _copy(x_ptr, out_ptr, ROW: tl.constexpr):
    at = tl.program_id(0) * ROW + tl.arange(0, ROW)
    tl.store(out_ptr + at, tl.load(x_ptr + at))
