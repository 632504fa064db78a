"""What the lookup tells the host with every result: one int32 a request. Free of torch.

Layout of `DraftTree.signal`: bits 0..7 the match length in tokens (0: nothing was found), bits 8..15 the
streak: how many times in a row, up to the step before this one, the first draft was the token that came
(drafted or only thought of). Both stop at 255.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST = 255  # of each field
STREAK_SHIFT = 8
FIRST, STREAK = "ngram_first", "ngram_streak"  # relay fields: the best first draft, and the streak up to it


@dataclass(frozen=True)
class Signal:
    """match: tokens of context that were found, 0 for none. streak: first drafts in a row that were right."""

    match: int
    streak: int


def unpack_signal(packed: int) -> Signal:
    """What the device made: match | streak << 8."""
    return Signal(packed & MOST, packed >> STREAK_SHIFT & MOST)
