"""Attention by programs that take request after request: which passes it takes, what it is launched with, and
what comes out."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from fake_launch import Launched
from test_attention_stream import LENS, Pass, on_hopper, reference
from torch import Tensor

import kernels.attention_queue as queue_module
from backends import triton as backend
from kernels.attention_decode import attention_decode
from kernels.attention_merge import Workspace
from kernels.attention_queue import QUEUE, attention_queue, queues
from kernels.attention_splits import Space, SplitPlan
from kernels.attention_tiles import HOPPER, tiles_for

PLAN = SplitPlan(4 * 132, 0, 64)
MANY = (*LENS, 1000, 3, 8, 9, 7, 31, 32, 33)
CASES = {
    "8B": Pass(MANY),
    "one head a group": Pass(MANY, heads=4, kv_heads=4),
    "eight a group": Pass(MANY, heads=16, kv_heads=2, dtype=torch.float16),
    "seven a group": Pass(MANY, heads=28, kv_heads=4),
    "three a group": Pass(MANY, heads=9, kv_heads=3),
    "pages of 8": Pass(MANY, page=8),
    "rows of three pages": Pass((0, 1, 20, 9, 7, 22), page=8),
    "pages of 64": Pass(MANY, page=64),
    "pages of 256": Pass(MANY, page=256, dtype=torch.float16),
}
gpu = pytest.param(True, marks=on_hopper)


@pytest.mark.parametrize("programs", [pytest.param(n, marks=on_hopper) for n in (1, 2, 7, 264)])
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_results_are_those_of_float64(case: Pass, programs: int) -> None:
    """Twice the same to the bit, whoever took what; nothing of what lies behind a request's end; the queue is
    empty again."""
    q, kv, batch = replace(case, device="cuda").build()
    assert queues(q, kv, batch, case.page)
    queue = torch.zeros(2, dtype=torch.int32, device="cuda")
    found = [attention_queue(q, kv, batch, case.scale, case.page, queue, programs) for _ in range(2)]
    assert torch.equal(*found)
    assert queue.tolist() == [0, 0]
    expected = reference(q, kv, batch, case.scale)
    assert (found[0].double() - expected).norm() / expected.norm() < 5e-3
    assert (found[0].double() - expected).abs().max() < 2e-2


@pytest.mark.parametrize("here", [gpu])
def test_queries_may_lie_beside_keys_and_values(here: bool) -> None:
    """As a view of what one product made."""
    case = Pass(LENS, device="cuda")
    q, kv, batch = case.build()
    wide = torch.full((batch.size, 48, 128), float("nan"), dtype=q.dtype, device="cuda")
    wide[:, :32] = q
    queue = torch.zeros(2, dtype=torch.int32, device="cuda")
    found = attention_queue(wide[:, :32], kv, batch, case.scale, 16, queue, 264)
    assert torch.equal(found, attention_queue(q, kv, batch, case.scale, 16, queue, 264))


@pytest.mark.parametrize("here", [gpu])
def test_a_graph_reads_lengths_rows_and_pages_that_lie_there_now(here: bool) -> None:
    case = Pass(tuple(torch.randint(1, 700, (120,), generator=torch.Generator().manual_seed(1)).tolist()))
    q, kv, batch = replace(case, device="cuda").build()
    plan, tiles = PLAN, replace(tiles_for(HOPPER, 2, 128), queued=True)
    room = Workspace.allocate(Space(1, 1024, 128), q.device)

    def run() -> Tensor:
        return attention_decode(q, kv, batch, case.scale, 16, tiles, plan, room)

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run()
    order = torch.randperm(120)
    for field in (batch.rows, batch.seq_lens.device):
        field.copy_(field[order.cuda()].clone())
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        bound = tuple(case.lens[i] for i in order.tolist())
        now = replace(batch, seq_lens=replace(batch.seq_lens, bound=bound))
        expected = reference(q, kv, now, case.scale)
        assert (found.double() - expected).norm() / expected.norm() < 5e-3
    assert not room.arrivals.any()


@pytest.mark.parametrize("here", [gpu])
def test_two_streams_with_queues_of_their_own(here: bool) -> None:
    """As the halves of two-batch overlap: more programs than fit, none of which waits for another."""
    worlds = [replace(CASES["8B"], device="cuda").build() for _ in range(2)]
    alone = [
        attention_queue(*world, 0.1, 16, torch.zeros(2, dtype=torch.int32, device="cuda"), 264)
        for world in worlds
    ]
    streams = [torch.cuda.Stream() for _ in worlds]
    torch.cuda.synchronize()
    found: list[list[Tensor]] = [[], []]
    for number, (world, stream) in enumerate(zip(worlds, streams, strict=True)):
        with torch.cuda.stream(stream):
            queue = torch.zeros(2, dtype=torch.int32, device="cuda")
            found[number] = [attention_queue(*world, 0.1, 16, queue, 264) for _ in range(20)]
    torch.cuda.synchronize()
    for outs, expected in zip(found, alone, strict=True):
        assert all(torch.equal(out, expected) for out in outs)


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        (Pass((5,)), True),
        (Pass((5,), heads=8, kv_heads=1), True),
        (Pass((5,), heads=16, kv_heads=1), False),
        (Pass((5,), width=2), False),
        (Pass((5,), dim=64), False),
        (Pass((5,), page=4), False),
        (Pass((5,), page=24), False),
        (Pass((5,), dtype=torch.float32), False),
    ],
    ids=str,
)
def test_it_takes_plain_decode_passes_of_large_16_bit_heads(case: Pass, wanted: bool) -> None:
    assert queues(*case.build(), case.page) is wanted


def test_trees_and_windows_are_left_to_tiles() -> None:
    q, kv, batch = Pass((5,)).build()
    for field in ("tree_mask", "window_slots"):
        assert not queues(q, kv, replace(batch, **{field: torch.zeros(1)}), 16)


def test_every_program_has_several_turns() -> None:
    """Two programs a processor: of fewer turns than three, the last round would leave many idle."""
    assert PLAN.staying == 264
    assert [PLAN.queueing(requests, 8) for requests in (1, 98, 99, 256)] == [False, False, True, True]
    assert not SplitPlan(4 * 132, 4, 64).queueing(256, 8)  # the user's splits are kept to


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("requests", [98, 99])
def test_decode_hands_it_what_it_can(requests: int, queued: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dependently where tiles are."""
    taken: list[tuple[Any, ...]] = []

    def noted(q: Tensor, *rest: Any, early: bool = False) -> Tensor:
        taken.append((*rest, early))
        return q

    monkeypatch.setattr("kernels.attention_decode.attention_queue", noted)
    monkeypatch.setattr("kernels.attention_decode.attention_stream", lambda q, *rest: q)
    q, kv, batch = Pass((2,) * requests).build()
    room = Workspace.allocate(Space(1, 1000, 128), q.device)
    tiles = replace(tiles_for(HOPPER, 2, 128), queued=queued)
    attention_decode(q, kv, batch, 0.1, 16, tiles, PLAN, room)
    attention_decode(q, kv, batch, 0.1, 16, tiles.lean(), PLAN, room)
    attention_decode(q, kv, batch, 0.1, 16, tiles.dependent(), PLAN, room)
    assert [rest[6] for rest in taken] == [False, True] * (requests >= 99 and queued)
    for rest in taken:
        assert (rest[4].data_ptr(), rest[4].numel(), rest[5]) == (room.arrivals.data_ptr(), 2, 264)


@pytest.mark.parametrize("reason", ["", "there is no compiler"])
def test_a_gpu_where_it_cannot_be_used_is_told_of_once(
    reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kernels.cuda.available.why_not", lambda: reason)
    backend._queued.cache_clear()
    with caplog.at_level(logging.WARNING, "syncless"):
        assert [backend._queued() for _ in range(2)] == [not reason] * 2
    backend._queued.cache_clear()
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [reason] * bool(reason)


@pytest.mark.parametrize("processors", [1, 16, 78, 132])
def test_there_are_counters_wherever_passes_queue(processors: int) -> None:
    for fixed, positions in product((0, 3), (16, 64, 4096)):
        plan = SplitPlan(4 * processors, fixed, 64)
        for requests, kv_heads in product((1, 2, 99, 256), (1, 8, 96)):
            space = Space(
                plan.cells(requests, 1, 4 * kv_heads, kv_heads, positions),
                plan.split_tiles(requests, 1, 4 * kv_heads, kv_heads),
                128,
            )
            assert space.arrivals >= QUEUE
            assert not (fixed and plan.queueing(requests, kv_heads))
            assert plan.staying > 0


@pytest.mark.parametrize("page", [8, 16, 64])
def test_maps_say_where_halves_of_eight_keys_lie(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses as TMA would compute them, from the maps' coordinates, against the tensors' own."""
    noted, maps = Launched(), []
    monkeypatch.setattr(queue_module, "kernel", lambda *what: noted)

    def mapped(tensor: Tensor, dims: Any, strides: Any, box: Any) -> tuple[Any, ...]:
        maps.append((tensor, dims, strides, box))
        return maps[-1]

    monkeypatch.setattr(queue_module, "tensor_map", mapped)
    case = Pass((3, 40), heads=12, kv_heads=3, page=page)
    q, kv, batch = case.build()
    wide = torch.empty(2, 20, 128, dtype=q.dtype)
    queue = torch.zeros(2, dtype=torch.int32)
    out = attention_queue(wide[:, 4:16], kv, batch, 0.5, page, queue, 5)
    ((grid, args),) = noted.launches
    assert (grid, args[0:3], args[3] is out, args[8]) == (5, tuple(maps), True, 6)
    assert args[10] == pytest.approx(0.5 * 1.4426950408889634)
    (q_map, k_map, v_map) = maps
    assert q_map[3] == (64, 4, 1, 1)
    assert at(q_map, 0, 8, 1, 1) == wide[:, 4:16][1, 8, 64:].data_ptr()
    for side, found in ((kv.k, k_map), (kv.v, v_map)):
        assert (found[1][3] * 8, found[3]) == (side.shape[0], (64, 8, 2, 1))
        assert at(found, 0, 5, 2 * 2 + 1, 1) == side[13, 2, 64:].data_ptr()
    attention_queue(wide[:, 4:16], kv, batch, 0.5, page, queue, 264, early=True)
    assert noted.launches[-1][0] == 6  # no more programs than there is to take
    assert noted.early == [False, True]


def at(found: tuple[Any, ...], *place: int) -> int:
    """The address of a coordinate, innermost first."""
    tensor, dims, strides, _ = found
    assert all(0 <= one < most for one, most in zip(place, dims, strict=True))
    steps = (tensor.element_size(), *strides)
    return int(tensor.data_ptr()) + sum(one * step for one, step in zip(place, steps, strict=True))
