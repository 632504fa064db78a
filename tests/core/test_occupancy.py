"""How busy the device was: windows by hand, and whole runs of an engine on its two clocks."""

from __future__ import annotations

import pytest
from support.engines import TINY, make

from engine.compiled import COMPILED
from engine.metrics import EngineMetrics, difference, rates
from engine.occupancy import Occupancy
from engine.params import SamplingParams


def test_a_window_by_hand() -> None:
    window = Occupancy(window=2)
    assert window.share is None
    window.note(10.0, 1.0)
    assert window.share is None
    window.note(11.0, 1.5)
    assert window.share == pytest.approx(0.5)
    window.note(12.0, 2.5)
    assert window.share == pytest.approx(0.75)
    window.note(14.0, 2.5)  # the first result has left the window
    assert window.share == pytest.approx(1 / 3)


def test_work_that_was_seen_late_is_never_more_than_everything() -> None:
    window = Occupancy()
    window.note(1.0, 0.0)
    window.note(2.0, 1.25)  # a step from before the window was noticed in it
    assert window.share == 1.0


def test_idle_time_is_in_no_window() -> None:
    window = Occupancy()
    window.note(1.0, 1.0)
    window.note(2.0, 2.0)
    window.rest()
    assert window.share is None
    window.note(1000.0, 2.0)
    window.note(1001.0, 3.0)
    assert window.share == pytest.approx(1.0)


@pytest.mark.parametrize("overlap", ["none", "future"])
def test_the_share_of_a_run(overlap: str) -> None:
    """On the CPU the device is the thread itself: it is at work, but not all the time."""
    with make(*TINY, f"overlap={overlap}") as llm:
        llm.generate([[3, 4, 5]], SamplingParams(max_tokens=4, ignore_eos=True))  # warm-up
        before = llm.metrics.snapshot()
        llm.generate([[3, 4, 5], [6, 7]], SamplingParams(max_tokens=40, ignore_eos=True))
        counts = difference(before, llm.metrics.snapshot())
        assert 0.0 < counts["device_seconds"] < counts["serving_seconds"]
        share = rates(counts)["forward_occupancy"]
        assert share == pytest.approx(counts["device_seconds"] / counts["serving_seconds"])
        assert llm.metrics.forward_occupancy is None  # nobody is served at present
        llm.add([3, 4, 5], SamplingParams(max_tokens=40, ignore_eos=True))
        for _ in range(8):
            llm.step()
        assert llm.metrics.forward_occupancy is not None
        assert 0.0 < llm.metrics.forward_occupancy <= 1.0


def test_a_warm_up_is_in_no_difference() -> None:
    """Field report M4."""
    metrics = EngineMetrics()
    metrics.device_worked(1.0, 100.0)
    metrics.serving_seconds = 400.0
    before = metrics.snapshot()
    metrics.device_worked(2.0, 109.0)
    metrics.serving_seconds = 410.0
    assert rates(difference(before, metrics.snapshot()))["forward_occupancy"] == pytest.approx(0.9)


def test_kernels_compiled_while_measuring_show_in_the_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(COMPILED, "total", COMPILED.total)
    metrics = EngineMetrics()
    before = metrics.snapshot()
    COMPILED.total += 2
    assert difference(before, metrics.snapshot())["compiled_kernels"] == 2
    assert metrics.compiled_kernels == COMPILED.total
