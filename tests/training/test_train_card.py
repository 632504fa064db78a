"""The card for people says what was measured, and says so when nothing was."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.models.shape import ModelShape
from speculative.eagle3.training.card import CARD, README, write_cards

TARGET = ModelShape("count", 259, 1, 1, 1, 1, 1, 1, 2048)
MEASURED = {"alpaca": {"accept_length": 1.75, "acceptance_per_position": [0.5, 0.25]}}


@pytest.mark.parametrize(("sets", "measured"), [({}, False), (MEASURED, True)])
def test_acceptance_is_given_only_where_it_was_measured(tmp_path: Path, sets: dict, measured: bool) -> None:
    figures = {"sets": sets, "by_vocab": {}, "coverage": {}}
    write_cards(tmp_path, TARGET, figures, [], {}, drafts=2)
    text = (tmp_path / README).read_text()
    assert ("| alpaca | 1.750 | 0.500 | 0.250 |" in text) is measured
    assert ("task.evaluate" in text) is not measured
    assert ("Draft vocabulary" in text) is measured
    assert (tmp_path / CARD).exists() is measured
