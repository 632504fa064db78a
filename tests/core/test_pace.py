"""Bounds of time on a machine that is slow just now."""

from __future__ import annotations

import pytest
from support import pace


@pytest.mark.parametrize(
    ("seconds", "slow", "kept"), [(0.9, 1.0, True), (1.1, 1.0, False), (1.9, 2.0, True), (2.1, 2.0, False)]
)
def test_a_bound_grows_with_what_python_takes(
    seconds: float, slow: float, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "slowness", lambda: slow)
    assert pace.within(seconds, 1.0) is kept


@pytest.mark.parametrize(("times", "slow"), [((4.0, 2.0, 3.0, 5.0, 6.0), 2.0), ((0.5,) * 5, 1.0)])
def test_the_quickest_of_several_counts_and_a_fast_machine_has_the_same_bounds(
    times: tuple[float, ...], slow: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = iter([pace._SECONDS * one for one in times])
    monkeypatch.setattr(pace, "_spent", lambda: next(spent))
    assert pace.slowness() == pytest.approx(slow)
