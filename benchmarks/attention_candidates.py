"""Which tiles of attention are tried on a pass, and which one an engine takes.

Knows tables and shapes, no times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from benchmarks.attention_timing import Bench
from engine.batch import LayerKV
from kernels.attention_splits import SplitPlan
from kernels.attention_tiles import Tile, Tiles

Run = Callable[[Tensor, LayerKV], Tensor]
DECODE = (
    (32, 1, 3, 0, False), (32, 1, 4, 0, False), (32, 2, 3, 0, False), (32, 2, 4, 0, False),
    (64, 2, 2, 0, False), (64, 2, 3, 0, False), (32, 4, 3, 0, False), (32, 4, 3, 168, False),
    (32, 4, 4, 0, False), (64, 4, 2, 0, False), (64, 4, 3, 0, False), (128, 8, 2, 0, False),
    (32, 2, 3, 0, True), (32, 2, 4, 0, True), (64, 4, 1, 0, True), (64, 4, 2, 0, True), (64, 4, 3, 0, True),
    (64, 8, 2, 0, True), (128, 8, 1, 0, True), (128, 8, 2, 0, True),
)  # fmt: skip
STREAM = ((64, 1, 0), (64, 1, 80), (64, 2, 0), (128, 1, 0))  # keys, stages, registers
EXTEND = (
    (128, 64, 8, 3, 0), (128, 64, 8, 2, 0), (128, 64, 8, 2, 128), (128, 128, 8, 2, 0), (128, 32, 8, 4, 128),
    (128, 64, 8, 4, 0), (64, 64, 4, 2, 0), (64, 64, 4, 3, 0),
)  # fmt: skip


@dataclass(frozen=True)
class Way:
    """A tile, and whether it is that of the kernel in attention_stream; None: the kernel in attention_queue,
    which has neither tiles nor splits."""

    tile: Tile | None
    streamed: bool = False

    def run(self, bench: Bench, plan: SplitPlan) -> Run:
        if self.tile is None:
            return bench.queue(plan)
        return bench.stream(self.tile, plan) if self.streamed else bench.decode(self.tile, plan)

    def __str__(self) -> str:
        return "queued" if self.tile is None else "streamed " * self.streamed + text_of(self.tile)


def decode_ways(bench: Bench, plan: SplitPlan, tiles: Tiles, early: bool) -> tuple[Way, list[Way]]:
    """What kernels/attention_decode.py takes for the pass, and all that is tried, that first."""
    what, heads = bench.what, bench.what.heads
    rows, crowded = what.new * heads.query // heads.kv, plan.crowded(what.requests, heads.kv)
    room = plan.room(what.requests, what.new, heads.query, heads.kv)
    tile = replace(tiles.decoding(rows, crowded=crowded, room=room), dependent=early)
    chosen, ways = Way(tile), [Way(one) for one in decode_tiles(tile)]
    streamed = tiles.streaming(plan.parting(what.requests, heads.kv))
    streamed = streamed and replace(streamed, dependent=early)
    if streamed is not None and bench.streams(streamed):
        ways += [
            Way(replace(streamed, keys=keys, stages=stages, registers=registers), streamed=True)
            for keys, stages, registers in STREAM
        ]
        if plan.streaming(what.requests, heads.kv):
            chosen = Way(streamed, streamed=True)
    if tiles.queued and bench.queues():
        ways.append(Way(None))
        if plan.queueing(what.requests, heads.kv):
            chosen = Way(None)
    return chosen, list(dict.fromkeys([chosen, Way(tile), *ways]))


def decode_tiles(chosen: Tile) -> list[Tile]:
    """Candidates with the chosen one's rows."""
    return [
        replace(chosen, keys=keys, warps=warps, stages=stages, registers=registers, held=held)
        for keys, warps, stages, registers, held in DECODE
    ]


def extend_tiles(early: bool) -> list[Tile]:
    """Candidates for prompts."""
    return [
        Tile(rows, keys, warps=warps, stages=stages, dependent=early, registers=registers)
        for rows, keys, warps, stages, registers in EXTEND
    ]


def text_of(tile: Tile) -> str:
    """A tile as the table of tiles has it."""
    limit = f", registers={tile.registers}" if tile.registers else ""
    limit += ", held=True" if tile.held else ""
    return f"Tile({tile.rows}, {tile.keys}, warps={tile.warps}, stages={tile.stages}{limit})"
