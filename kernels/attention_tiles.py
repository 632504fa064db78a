"""Sizes of attention tiles: a small table for GPUs, a rule for the interpreter.

Knows shapes and a GPU's generation, no batch and no kernel. What a measurement says may replace the table's
entries: callers pass tiles on as values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kernels.attention_splits import DECODE_ROWS
from kernels.launch import interpreted_keys, power_of_two

HOPPER = 9  # major compute capability from which a block has 227 KiB of shared memory


@dataclass(frozen=True)
class Tile:
    """Block sizes of one launch, powers of two from 16 up (the least that a GPU's dot takes).

    heads: KV heads that share a tile, a divisor of their number. More than one multiplies the arithmetic by
    it: only for the interpreter, where each operation costs the same whatever its size.
    dependent: programs start while the kernel in front ends (kernels.launch.dependent).
    registers: of a thread, at most; 0: as many as the compiler likes.
    held: the first block of the prefix is read while the kernel in front ends, into registers.
    lean: between kernels that live off the first-level cache (kernels.launch.leave_cache).
    """

    rows: int
    keys: int
    heads: int = 1
    warps: int = 4
    stages: int = 2
    dependent: bool = False
    registers: int = 0
    held: bool = False
    lean: bool = False

    def limits(self) -> dict[str, int]:
        """Launch arguments that not every tile has."""
        return {"maxnreg": self.registers} if self.registers else {}

    def at_most(self, rows: int) -> Tile:
        """The same with no more rows than the power of two that holds `rows`."""
        return replace(self, rows=min(self.rows, power_of_two(max(16, rows))))


@dataclass(frozen=True)
class Tiles:
    """The largest tile of either kind of pass on one device. narrow: smaller ones first, of decode passes
    whose rows fit, where they are not `decode` with fewer rows. crowded: instead of the first of those where
    a pass has many times more tiles than run at once: room for one more of them counts more than keys in
    flight. few: (room, tile): before `narrow` where a pass leaves so much room (SplitPlan.room): its time is
    latency. streamed: of the kernel in attention_stream, which serves all but small passes
    (SplitPlan.streaming) where it can; its keys are rows of the matrix units. parted: instead of `streamed`
    where several programs read a request (SplitPlan.parting), if there is another. queued: the kernel in
    attention_queue serves passes of very many requests (SplitPlan.queueing) where it can."""

    decode: Tile
    extend: Tile
    narrow: tuple[Tile, ...] = ()
    crowded: Tile | None = None
    few: tuple[tuple[int, Tile], ...] = ()
    streamed: Tile | None = None
    parted: Tile | None = None
    queued: bool = False

    def dependent(self) -> Tiles:
        """The same, for dependent launches."""
        return self._each(lambda tile: replace(tile, dependent=True))

    def lean(self) -> Tiles:
        """The same, for passes that leave memory to the cache: none is streamed or queued."""
        each = self._each(lambda tile: replace(tile, lean=True))
        return replace(each, streamed=None, parted=None, queued=False)

    def _each(self, change: Callable[[Tile], Tile]) -> Tiles:
        crowded, streamed, parted = (
            tile and change(tile) for tile in (self.crowded, self.streamed, self.parted)
        )
        narrow, few = map(change, self.narrow), ((room, change(tile)) for room, tile in self.few)
        kept = change(self.decode), change(self.extend), tuple(narrow), crowded, tuple(few)
        return Tiles(*kept, streamed, parted, self.queued)

    def streaming(self, parting: bool) -> Tile | None:
        """The tile of streamed passes. parting: SplitPlan says it of the pass."""
        return (self.parted if parting else None) or self.streamed

    def decoding(self, rows: int, *, crowded: bool = False, room: int = 0) -> Tile:
        """The tile for `rows` query rows a request. crowded, room: SplitPlan says it of the pass."""
        if crowded and self.crowded is not None and rows <= self.crowded.rows:
            return self.crowded
        smaller = (*(tile for least, tile in self.few if room >= least), *self.narrow)
        fitting = [tile for tile in smaller if rows <= tile.rows]
        return min(fitting, key=lambda tile: tile.rows, default=self.decode.at_most(rows))  # few first

    def extending(self, rows: int) -> Tile:
        """The tile for `rows` query rows a request: whole or half, so that two kernels serve all prompts."""
        half = self.extend.rows // 2
        return self.extend if rows > half else self.extend.at_most(half)


_FULL = DECODE_ROWS[2]
_STREAMED = Tile(16, 64, warps=4, stages=1)  # many programs beside each other: starting one takes its time
_PARTED = replace(_STREAMED, stages=2)  # fewer of them, each with the next block on its way
_PLAIN = Tiles(Tile(DECODE_ROWS[4], 32), Tile(32, 32))  # fp32: on the plain units, out of registers
# (generation, largest head size) -> tiles of 16-bit elements; shared memory: rows + 2 * stages * keys lines
_TABLE = {
    # A warp for 16 rows: none of a row's sums cross warps. Measured on an H200 at 128, by analogy at 64, but
    # for streams, which the kernel knows at 64 too.
    (HOPPER, 64): Tiles(
        Tile(_FULL, 64, stages=3),
        Tile(128, 64, stages=3),
        (Tile(16, 64, warps=2, stages=4), Tile(32, 64, warps=2, stages=3)),
        Tile(16, 64, warps=2, stages=3),
    ),
    (HOPPER, 128): Tiles(
        Tile(_FULL, 32, stages=3),
        Tile(128, 64, warps=8, stages=3),
        (Tile(16, 32, warps=2, stages=4), Tile(32, 32, warps=2, stages=3)),
        Tile(16, 32, warps=2, stages=3),
        # One or two requests: a split of one new token is one block. From 8 requests on that is slower.
        ((32, Tile(16, 64, registers=168, held=True)), (4, Tile(32, 64, stages=3))),
        _STREAMED,
        _PARTED,
    ),
    (HOPPER, 256): Tiles(Tile(_FULL, 32, stages=3), Tile(64, 32, warps=8, stages=3)),
    (0, 64): Tiles(Tile(_FULL, 64), Tile(64, 64)),
    (0, 128): Tiles(Tile(_FULL, 64), Tile(64, 64)),
    (0, 256): Tiles(Tile(_FULL, 32), Tile(64, 32)),
}


def tiles_for(capability: int, element_size: int, dim: int) -> Tiles:
    """capability: major compute capability of the GPU; element_size: bytes of an element of q."""
    if element_size == 4:
        return _PLAIN
    generation = HOPPER if capability >= HOPPER else 0
    tiles = _TABLE[generation, next((d for d in (64, 128) if dim <= d), 256)]
    # Later generations lack the instructions of streams.
    return tiles if capability == HOPPER else replace(tiles, streamed=None, parted=None)


def interpreted_tile(rows: int, dim: int, positions: int, heads: int, most_rows: int = 1 << 20) -> Tile:
    """Few and large, from sizes that do not change from step to step. rows: query rows of all `heads`
    together; positions: that a row of the table holds."""
    rows = min(power_of_two(max(16, rows)), most_rows)
    reach = power_of_two(max(16, positions * heads))
    return Tile(rows, min(reach, interpreted_keys(rows, dim)), heads)
