"""Training text as token ids, cut into batches of similar length in an order that can be resumed.

Knows ids and lengths; not what they mean, nor the device.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WINDOW = 64  # batches' worth of sequences that are sorted by length together
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class TextStore:
    """Sequences end to end. tokens: int32 of all; starts: int64 [N + 1]; prompts: int32 [N], how many tokens
    of each sequence were given to the target (the rest it said itself)."""

    tokens: NDArray[np.int32]
    starts: Ids
    prompts: NDArray[np.int32]

    @classmethod
    def of(cls, sequences: Sequence[tuple[Sequence[int], int]]) -> TextStore:
        """From (ids, prompt length) pairs; those too short to teach a first draft are left out."""
        kept = [(ids, prompt) for ids, prompt in sequences if prompt >= 1 and len(ids) >= prompt + 2]
        lengths = np.array([0] + [len(ids) for ids, _ in kept], dtype=np.int64)
        flat = np.fromiter((i for ids, _ in kept for i in ids), dtype=np.int32, count=int(lengths.sum()))
        return cls(flat, lengths.cumsum(), np.array([prompt for _, prompt in kept], dtype=np.int32))

    def __len__(self) -> int:
        return len(self.prompts)

    def ids(self, index: int) -> NDArray[np.int32]:
        """The tokens of one sequence."""
        return self.tokens[self.starts[index] : self.starts[index + 1]]

    @property
    def lengths(self) -> Ids:
        return np.diff(self.starts)

    @property
    def said(self) -> int:
        """Tokens that the target itself said."""
        return int(self.lengths.sum() - self.prompts.sum())

    @property
    def checksum(self) -> int:
        """Of ids, lengths and prompts: which text it is."""
        parts = (self.tokens, self.starts, self.prompts)
        return zlib.crc32(b"".join(np.ascontiguousarray(part).tobytes() for part in parts))

    def counts(self, vocab: int) -> Ids:
        """How often the target said each id, int64 [vocab]."""
        place = np.arange(len(self.tokens)) - np.repeat(self.starts[:-1], self.lengths)
        return np.bincount(self.tokens[place >= np.repeat(self.prompts, self.lengths)], minlength=vocab)

    def shorter_than(self, longest: int) -> TextStore:
        """Without the sequences of more than `longest` tokens."""
        keep = [i for i in range(len(self)) if self.lengths[i] <= longest]
        return TextStore.of([(self.ids(i).tolist(), int(self.prompts[i])) for i in keep])


def batches(store: TextStore, epoch: int, seed: int, tokens: int) -> list[Ids]:
    """Sequence numbers of each batch of one epoch: about `tokens` positions a batch, padding included.

    The order depends on (seed, epoch) alone, so a run that stopped within an epoch finds its place again.
    """
    rng = np.random.default_rng((seed, epoch))
    order = rng.permutation(len(store))
    lengths = store.lengths
    per_window = max(1, int(WINDOW * tokens / max(1.0, float(lengths.mean()))))
    found: list[Ids] = []
    for start in range(0, len(order), per_window):
        window = order[start : start + per_window]
        found += _cut(window[np.argsort(lengths[window], kind="stable")], lengths, tokens)
    return [found[i] for i in rng.permutation(len(found))]


def _cut(ordered: Ids, lengths: Ids, tokens: int) -> Iterator[Ids]:
    """Consecutive runs of ascending lengths whose padded size stays within `tokens`."""
    first = 0
    for last in range(len(ordered)):
        if (last - first + 1) * lengths[ordered[last]] > tokens and last > first:
            yield ordered[first:last]
            first = last
    yield ordered[first:]
