"""Attention passes on a GPU to be timed: batches over a paged pool, in CUDA graphs, beside torch's SDPA.

Knows shapes and tiles; nothing of which of them are compared. Legend: B requests, W width, T new tokens,
L context, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.ceilings import seconds_of
from engine.batch import ForwardBatch, LayerKV, Mode, SeqLens
from kernels.attention_decode import attention_decode
from kernels.attention_extend import attention_extend
from kernels.attention_merge import Partial, Workspace
from kernels.attention_queue import QUEUE, attention_queue, queues
from kernels.attention_splits import Space, SplitPlan
from kernels.attention_stream import attention_stream, streams
from kernels.attention_tiles import Tile, Tiles

CACHES = 4  # how many times the L2 cache the keys and values of a graph are
LAUNCHES = 8  # in a graph, at least
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Heads:
    """Query heads, KV heads, head size, tokens a page."""

    query: int
    kv: int
    dim: int
    page: int = 16

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.dim)

    @property
    def token_bytes(self) -> int:
        """Of keys and values of one position."""
        return 2 * self.kv * self.dim * DTYPE.itemsize


@dataclass(frozen=True)
class Pass:
    """requests: B; new: tokens of each; before: of each in the pool; verify: a decode pass."""

    heads: Heads
    requests: int
    new: int
    before: int
    verify: bool

    @property
    def bytes(self) -> int:
        """Keys and values that have to be read once."""
        return self.requests * (self.before + self.new) * self.heads.token_bytes

    @property
    def flops(self) -> float:
        """Products of the causal pairs, multiplications and additions."""
        pairs = self.requests * (self.new * self.before + self.new * (self.new + 1) / 2)
        return 4 * pairs * self.heads.query * self.heads.dim


class Bench:
    """One pass over as many pools as no cache holds. Every candidate computes the same."""

    def __init__(self, what: Pass, device: torch.device, cache: int, positions: int = 0) -> None:
        """cache: bytes of the device's last cache. positions: that a row of the table holds at least, as an
        engine's would: grids follow from it."""
        self.what = what
        heads = what.heads
        self._copies = max(1, min(64, -(-CACHES * cache // what.bytes)))
        pages = -(-(what.before + what.new) // heads.page)
        slots = (what.requests * pages + 1) * heads.page
        shape = (slots, heads.kv, heads.dim)
        self._pools = [
            LayerKV(i, *(torch.randn(shape, dtype=DTYPE, device=device) for _ in "kv"))
            for i in range(self._copies)
        ]
        tokens = what.requests * what.new
        self._q = torch.randn((tokens, heads.query, heads.dim), dtype=DTYPE, device=device)
        self.batch = _batch(what, pages, device, positions // heads.page)

    @property
    def launches(self) -> int:
        return max(LAUNCHES, self._copies)

    def seconds(self, run: Callable[[Tensor, LayerKV], Tensor]) -> float:
        """Median seconds of a launch of `run`, in a graph over all pools in turn."""
        run(self._q, self._pools[0])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for number in range(self.launches):
                run(self._q, self._pools[number % self._copies])
        return seconds_of(graph.replay) / self.launches

    def once(self, run: Callable[[Tensor, LayerKV], Tensor]) -> Tensor:
        """The result over the first pool."""
        return run(self._q, self._pools[0]).clone()

    def decode(self, tile: Tile, plan: SplitPlan) -> Callable[[Tensor, LayerKV], Tensor]:
        """Our kernels on a decode pass."""
        what, heads = self.what, self.what.heads
        positions = self.batch.page_table.shape[1] * heads.page
        shape = what.requests, what.new, heads.query, heads.kv
        cells, counters = plan.cells(*shape, positions), plan.split_tiles(*shape)
        room = Workspace.allocate(Space(cells, counters, heads.dim), self._q.device)
        tiles = Tiles(tile, tile)
        return lambda q, kv: attention_decode(q, kv, self.batch, heads.scale, heads.page, tiles, plan, room)

    def stream(self, tile: Tile, plan: SplitPlan) -> Callable[[Tensor, LayerKV], Tensor]:
        """The kernel of large decode passes, whatever the size of this one; where it `streams`."""
        what, heads = self.what, self.what.heads
        positions = self.batch.page_table.shape[1] * heads.page
        splits = plan.streamed_splits(what.requests, heads.kv, positions)
        cells, tiles = what.requests * what.new * heads.query * splits.count, what.requests * heads.kv
        room = Workspace.allocate(Space(cells, tiles, heads.dim), self._q.device)
        partial = Partial(splits.count, splits.least, room) if splits.count > 1 else None
        return lambda q, kv: attention_stream(q, kv, self.batch, heads.scale, heads.page, tile, partial)

    def streams(self, tile: Tile) -> bool:
        """Whether `stream` can compute the pass with such a tile."""
        return streams(self._q, self._pools[0], self.batch, self.what.heads.page, tile)

    def queue(self, plan: SplitPlan) -> Callable[[Tensor, LayerKV], Tensor]:
        """The kernel of passes of very many requests, whatever the size of this one; where it `queues`."""
        heads = self.what.heads
        counters = torch.zeros(QUEUE, dtype=torch.int32, device=self._q.device)
        return lambda q, kv: attention_queue(
            q, kv, self.batch, heads.scale, heads.page, counters, plan.staying
        )

    def queues(self) -> bool:
        """Whether `queue` can compute the pass, where kernels in CUDA C++ can be used."""
        return queues(self._q, self._pools[0], self.batch, self.what.heads.page)

    def extend(self, tile: Tile, plan: SplitPlan) -> Callable[[Tensor, LayerKV], Tensor]:
        """Our kernel on a prefill pass."""
        heads, tiles = self.what.heads, Tiles(tile, tile)
        shape = 1, 1, heads.query, heads.kv
        cells = plan.cells(*shape, self.batch.page_table.shape[1] * heads.page)
        room = Workspace.allocate(Space(cells, plan.split_tiles(*shape), heads.dim), self._q.device)
        return lambda q, kv: attention_extend(q, kv, self.batch, heads.scale, heads.page, tiles, plan, room)

    def library(self) -> Callable[[Tensor, LayerKV], Tensor]:
        """torch's SDPA over keys that lie side by side already: what paging costs is not in it."""
        what, heads = self.what, self.what.heads
        length = what.before + what.new
        mask = None if what.before == 0 or what.new == 1 else _mask(what, self._q.device)

        def run(q: Tensor, kv: LayerKV) -> Tensor:
            keys, values = (
                side[heads.page :][: what.requests * length]
                .view(what.requests, length, heads.kv, heads.dim)
                .transpose(1, 2)
                for side in (kv.k, kv.v)
            )
            queries = q.view(what.requests, what.new, heads.query, heads.dim).transpose(1, 2)
            causal = what.before == 0 and what.new > 1
            out = scaled_dot_product_attention(
                queries, keys, values, mask, is_causal=causal, scale=heads.scale, enable_gqa=True
            )
            return out.transpose(1, 2).reshape(q.shape)

        return run


def _mask(what: Pass, device: torch.device) -> Tensor:
    """Which keys each new token sees, [T, L]."""
    row = torch.arange(what.new, device=device).unsqueeze(1)
    return torch.arange(what.before + what.new, device=device) <= row + what.before


def _batch(what: Pass, pages: int, device: torch.device, columns: int) -> ForwardBatch:
    """Requests side by side, each on pages of its own, in order: SDPA reads the same pool as it lies.
    columns: of the table, at least."""
    page, length = what.heads.page, what.before + what.new
    table = torch.zeros((what.requests + 1, max(pages, columns)), dtype=torch.int32, device=device)
    table[1:, :pages] = (
        torch.arange(what.requests * pages, dtype=torch.int32, device=device).view(-1, pages) + 1
    )
    lens = torch.full((what.requests,), what.before, dtype=torch.int32, device=device)
    rows = torch.arange(1, what.requests + 1, device=device)
    starts = torch.arange(what.requests + 1, dtype=torch.int32, device=device) * what.new
    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    assert length % page == 0 or what.requests == 1, "dense keys lie like pages for whole pages alone"
    return ForwardBatch(
        mode=Mode.VERIFY if what.verify else Mode.EXTEND,
        rows=rows,
        input_ids=nothing,
        positions=nothing,
        slots=nothing,
        seq_lens=SeqLens(lens, (what.before,) * what.requests),
        query_start=starts,
        query_lens=(what.new,) * what.requests,
        page_table=table,
        width=what.new if what.verify else 0,
        page_size=page,
    )


def with_splits(plan: SplitPlan, counts: Sequence[int]) -> list[SplitPlan]:
    """The plan, and the same with fixed numbers of splits."""
    return [plan, *(replace(plan, fixed=count) for count in counts)]
