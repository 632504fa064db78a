"""The draft vocabulary: the most frequent tokens of what the target says. Knows counts and ids only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Vocabulary:
    """ids: the target ids that a draft can say, strictly ascending, int64 [Vd]. size: target vocabulary."""

    ids: NDArray[np.int64]
    size: int

    @property
    def d2t(self) -> NDArray[np.int64]:
        """Offsets: target id = draft id + d2t[draft id]."""
        return self.ids - np.arange(len(self.ids))

    @property
    def t2d(self) -> NDArray[np.bool_]:
        """Which target ids the draft has, bool [V]."""
        found = np.zeros(self.size, dtype=np.bool_)
        found[self.ids] = True
        return found


def most_frequent(counts: NDArray[np.int64], size: int, always: tuple[int, ...] = ()) -> Vocabulary:
    """The `size` ids with the largest counts, and those of `always` (end of sequence) in any case.

    counts: int64 [V]. Among equal counts the smaller id wins, so unused ids fill up what is missing.
    """
    ranked = counts.astype(np.int64).copy()
    ranked[list(always)] = ranked.max(initial=0) + 1
    order = np.argsort(-ranked, kind="stable")[: min(size, len(counts))]
    return Vocabulary(np.sort(order).astype(np.int64), len(counts))


def coverage(counts: NDArray[np.int64], vocabulary: Vocabulary) -> float:
    """Share of the counted tokens that the draft can say."""
    return float(counts[vocabulary.ids].sum() / max(counts.sum(), 1))
