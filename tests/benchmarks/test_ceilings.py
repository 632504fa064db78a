"""How device seconds are taken: runs alone against runs in a row, over a card that slows down."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.ceilings import seconds_of, settled_seconds_of


class Card:
    """Each run takes a second more than the one before, after a wait one second again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.hot, self.waits = 0.0, 0, 0
        card = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                self.at = -1.0

            def record(self) -> None:
                self.at = card.now

            def synchronize(self) -> None:
                card.wait()

            def elapsed_time(self, end: Any) -> float:
                return 1e3 * float(end.at - self.at)

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", self.wait)

    def work(self) -> None:
        self.hot += 1
        self.now += self.hot

    def wait(self) -> None:
        self.hot, self.waits = 0, self.waits + 1


def test_a_run_alone_follows_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(monkeypatch)
    assert seconds_of(card.work, 5) == 1.0, "one run after the warm-up is hot"
    assert card.waits == 5


@pytest.mark.parametrize(("rounds", "median"), [(1, 1.0), (2, 2.0), (8, 6.5), (9, 7.0)])
def test_of_runs_in_a_row_the_second_half_counts(
    rounds: int, median: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = Card(monkeypatch)
    assert settled_seconds_of(card.work, rounds) == median
    assert card.waits == 1
