"""How the grids of attention are cut, and the room that their parts need. Numbers only, free of torch.

Knows sizes that a captured launch shares with every other of its kind; no lengths and no bounds of them.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_SPLITS = 32
# Bytes of an element -> rows of a GPU's largest decode tile. Fewer mean more tiles, and those fewer splits.
DECODE_ROWS = {2: 64, 4: 32}
_LEAST_SPLIT = 48  # keys that make a split worth its merge; most get 64, as whole blocks
_WIDE_SPLIT = 256  # of more rows than the smallest tile: their parts are larger, and so is the merge
_MEDIUM_SPLIT = 128  # where tiles alone keep half of the device busy
_LONG_SPLIT = 1024  # where the batch fills the device already, only long requests are split
_LONG_SPLITS = 4
_LONG_STREAM = 2048  # the same of a streamed pass
_QUEUE_TURNS = 3  # that each program of a queue takes at least, or few of them would set the pace
_STREAMING_ROOM = 12  # splits of each tile that run side by side, from which on a pass is not streamed
_MERGED_ROWS = 384  # of parts that one program reads in a merge; the others are done by then
_FEW_ROWS = 16
_CROWD = 2  # times as many tiles as programs that fill the device
_MERGED_SPLITS = 8  # whatever the rows
_PROMPT_SPLITS = 8  # fewer would cost a prompt's tokens more in merging than they save
_LONG_PROGRAMS = 2560  # of a launch with such splits: most of them end at once, but each has to start


@dataclass(frozen=True)
class Splits:
    """count: of every request in the grid; least: keys of one, below which a request uses fewer."""

    count: int
    least: int


@dataclass(frozen=True)
class Space:
    """What the splits of launches one after another work in, in values of four bytes: `sums` and `stats` of
    the parts that they leave, `arrivals` of those that have ended. cells: entries [T, Hq, splits] of any
    launch; tiles: of any, that may be split; dim: of a head."""

    cells: int
    tiles: int
    dim: int

    @property
    def sums(self) -> int:
        return self.cells * self.dim

    @property
    def stats(self) -> int:
        return self.cells * 2

    @property
    def arrivals(self) -> int:
        return self.tiles

    @property
    def bytes(self) -> int:
        return (self.sums + self.stats + self.arrivals) * 4


@dataclass(frozen=True)
class SplitPlan:
    """How the grids of launches are cut. programs: enough to fill the device; fixed: parts of every prefix,
    set by the user, or 0 for automatic; rows: of a decode tile."""

    programs: int
    fixed: int
    rows: int

    def splits(self, requests: int, width: int, heads: int, kv_heads: int, positions: int) -> Splits:
        """From sizes that a launch shares with every other of its batch size: never from lengths or their
        bounds, so that those do not change the result. positions: that a row of the table holds."""
        if self.fixed:
            return Splits(self.fixed, 1)
        tiles = self._tiles(requests, width, heads, kv_heads)
        share = self.room(requests, width, heads, kv_heads)
        count, least = min(_LONG_SPLITS, _LONG_PROGRAMS // tiles), _LONG_SPLIT
        if share >= _LONG_SPLITS:
            rows = min(width * (heads // kv_heads), self.rows)
            most = min(MAX_SPLITS, max(_MERGED_SPLITS, _MERGED_ROWS // rows))
            count, least = min(share, most), _LEAST_SPLIT if rows <= _FEW_ROWS else _WIDE_SPLIT
        elif share > 1:
            least = _MEDIUM_SPLIT
        return Splits(max(1, min(count, positions // least)), least)

    def crowded(self, requests: int, kv_heads: int) -> bool:
        """Whether decode tiles of so many requests queue for the device several times over."""
        return requests * kv_heads > _CROWD * self.programs

    @property
    def staying(self) -> int:
        """Programs of the kernel in attention_queue that run at once: two a processor."""
        return self.programs // 2

    def queueing(self, requests: int, kv_heads: int) -> bool:
        """Whether so many requests keep those programs busy several times over."""
        return not self.fixed and requests * kv_heads >= _QUEUE_TURNS * self.staying

    def streaming(self, requests: int, kv_heads: int) -> bool:
        """Whether so many requests leave so little of the device idle that what attention reads counts for
        more than how soon it begins."""
        return _STREAMING_ROOM * requests * kv_heads > self.programs

    def parting(self, requests: int, kv_heads: int) -> bool:
        """Whether streamed requests are so few that several programs read each."""
        return self._parts(requests, kv_heads) > 1

    def streamed_splits(self, requests: int, kv_heads: int, positions: int) -> Splits:
        """As `splits`, of the kernel in attention_stream. Where there are almost enough programs to read at
        the memory's rate, more of them only wait for each other."""
        if self.fixed:
            return Splits(self.fixed, 1)
        count, least = self._parts(requests, kv_heads), _MEDIUM_SPLIT
        if count <= 1:
            count, least = min(_LONG_SPLITS, _LONG_PROGRAMS // (requests * kv_heads)), _LONG_STREAM
        return Splits(max(1, min(count, positions // least)), least)

    def _parts(self, requests: int, kv_heads: int) -> int:
        """Programs of a streamed request and KV head, three to a processor."""
        return self.programs * 3 // 4 // (requests * kv_heads)

    def room(self, requests: int, width: int, heads: int, kv_heads: int) -> int:
        """How many splits of each tile of a pass run side by side."""
        return self.programs // self._tiles(requests, width, heads, kv_heads)

    def prompt_splits(self, requests: int, tokens: int, heads: int, kv_heads: int, positions: int) -> Splits:
        """The same for a prefill pass whose longest request has `tokens`: a few behind a long prefix leave
        most of the device idle."""
        found = self.splits(requests, tokens, heads, kv_heads, positions)
        idle = self.fixed or self.room(requests, tokens, heads, kv_heads) >= _PROMPT_SPLITS
        return found if idle else Splits(1, found.least)

    def split_tiles(self, max_rows: int, max_width: int, heads: int, kv_heads: int) -> int:
        """The most tiles of a launch whose cells `cells` counts, each of which counts its splits."""
        return max(self._tiles(max_rows, max_width, heads, kv_heads), self.programs)

    def _most_splits(self, requests: int, width: int, heads: int, kv_heads: int, positions: int) -> int:
        """Of either kernel."""
        found = self.splits(requests, width, heads, kv_heads, positions).count
        if not self.streaming(requests, kv_heads):
            return found
        return max(found, self.streamed_splits(requests, kv_heads, positions).count)

    def _tiles(self, requests: int, tokens: int, heads: int, kv_heads: int) -> int:
        return -(-tokens * (heads // kv_heads) // self.rows) * requests * kv_heads

    def cells(self, max_rows: int, max_width: int, heads: int, kv_heads: int, positions: int) -> int:
        """The most entries [T, Hq, splits] that a decode launch within these limits leaves, or a prefill
        launch of any size; 0: none is split."""
        sizes = [(b, w) for b in range(1, max_rows + 1) for w in range(1, max_width + 1)]
        counts = [(b * w, self._most_splits(b, w, heads, kv_heads, positions)) for b, w in sizes]
        decode = max((tokens * heads * count for tokens, count in counts if count > 1), default=0)
        # Splits of prompts are no more programs than fill the device.
        return (
            decode if self.fixed or positions < 2 * _LEAST_SPLIT else max(decode, self.programs * self.rows)
        )
