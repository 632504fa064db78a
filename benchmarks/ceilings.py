# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""What a card can do at most: read bandwidth, bf16 matrix rate, the cost of a graph's node and of a launch.

Measured in the run that uses them, since cards of one name differ. Knows no engine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import triton
import triton.language as tl

from benchmarks.power import Meter, Power

BYTES = 4 << 30  # read by the bandwidth figure: far beyond any cache
SIDE = 8192  # of the matrix product
NODES = 1000
ROUNDS = 7
SUSTAINED = 1.5  # seconds of work after which a card has settled at the clock that its power allows


@dataclass(frozen=True)
class Ceilings:
    """bandwidth: bytes a second read; flops: a second, of a few bf16 products; sustained: of many, which draw
    the card's full power and lower its clock; node: seconds of a graph's node that depends on the one before;
    launch and wait: seconds that a graph's launch takes on the host, alone and with the wait for its end.
    reading, multiplying: what the card draws while it does that for SUSTAINED; None where nobody tells."""

    bandwidth: float
    flops: float
    sustained: float
    node: float
    launch: float
    wait: float
    reading: Power | None = None
    multiplying: Power | None = None


@triton.jit
def _read(source, out, count, BLOCK: tl.constexpr, STEPS: tl.constexpr):  # noqa: N803
    at = tl.program_id(0).to(tl.int64) * BLOCK * STEPS + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.int32)
    for step in range(STEPS):
        total ^= tl.load(source + at + step * BLOCK, mask=at + step * BLOCK < count, other=0)
    tl.store(out + tl.program_id(0), tl.sum(total))  # something has to depend on what was read


def measure(device: torch.device) -> Ceilings:
    """All of it, some seconds."""
    launch, wait, node = _graph_costs(device)
    bandwidth, reading = _bandwidth(device)
    few, many, multiplying = _flops(device)
    return Ceilings(bandwidth, few, many, node, launch, wait, reading, multiplying)


def seconds_of(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Median device seconds of `work` on the current stream, each run alone; the first one warms up."""
    work()
    times: list[float] = []
    for _ in range(rounds):
        begin, end = _between_events(work)
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def settled_seconds_of(work: Callable[[], object], rounds: int) -> float:
    """The same of runs that follow each other without a wait; the second half of them counts."""
    events = [_between_events(work) for _ in range(rounds)]
    torch.cuda.synchronize()
    times: list[float] = [begin.elapsed_time(end) / 1e3 for begin, end in events[rounds // 2 :]]
    return statistics.median(times)


def _between_events(work: Callable[[], object]) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    return begin, end


def _bandwidth(device: torch.device) -> tuple[float, Power | None]:
    """(of reads, each alone; what many in a row draw)."""
    data = torch.randint(-(1 << 31), (1 << 31) - 1, (BYTES // 4,), dtype=torch.int32, device=device)
    rates: dict[Callable[[], None], float] = {}
    read = cast(Any, _read)  # a launcher, which triton's types take for the body itself
    for block, steps, warps in ((4096, 8, 8), (8192, 4, 8), (8192, 16, 16)):
        programs = triton.cdiv(data.numel(), block * steps)
        out = torch.empty(programs, dtype=torch.int32, device=device)

        def run(
            grid: int = programs, to: torch.Tensor = out, sizes: tuple[int, int, int] = (block, steps, warps)
        ) -> None:
            read[(grid,)](data, to, data.numel(), BLOCK=sizes[0], STEPS=sizes[1], num_warps=sizes[2])

        rates[run] = data.nbytes / seconds_of(run)
    fastest = max(rates, key=lambda run: rates[run])
    with Meter(device) as meter:
        settled_seconds_of(fastest, 1 + int(SUSTAINED * rates[fastest] / data.nbytes))
    return rates[fastest], meter.found


def _flops(device: torch.device) -> tuple[float, float, Power | None]:
    """(of a few products, each alone; of as many in a row as fill SUSTAINED; what those draw)."""
    a, b = (torch.randn(SIDE, SIDE, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    few = seconds_of(lambda: torch.mm(a, b, out=out))
    with Meter(device) as meter:
        many = settled_seconds_of(lambda: torch.mm(a, b, out=out), 1 + int(SUSTAINED / few))
    return 2.0 * SIDE**3 / few, 2.0 * SIDE**3 / many, meter.found


def _graph_costs(device: torch.device) -> tuple[float, float, float]:
    """(launch, launch and wait, a node), seconds."""
    x = torch.zeros(1024, device=device)
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        x.add_(1)
        short, long = (_chain(x, count) for count in (1, NODES))
        node = (seconds_of(long.replay) - seconds_of(short.replay)) / (NODES - 1)
        return *_host_costs(short), node


def _chain(x: torch.Tensor, count: int) -> torch.cuda.CUDAGraph:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    for _ in range(count):
        x.add_(1)
    graph.capture_end()
    return graph


def _host_costs(graph: torch.cuda.CUDAGraph) -> tuple[float, float]:
    launches, waits = [], []
    for _ in range(200):
        torch.cuda.synchronize()
        start = time.perf_counter()
        graph.replay()
        launches.append(time.perf_counter() - start)
        torch.cuda.current_stream().synchronize()
        waits.append(time.perf_counter() - start)
    return statistics.median(launches), statistics.median(waits)
