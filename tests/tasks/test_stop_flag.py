"""The flag that signals raise: the first asks, the second stops at once; former handlers come back."""

from __future__ import annotations

import io
import signal

import pytest

from engine.tasks.interrupts import StopFlag
from engine.termination import HANDED_ON, SIGNALS, sigterm_as_ctrl_c

HANDLERS = {number: signal.getsignal(number) for number in SIGNALS}
BOTH = pytest.mark.parametrize("second", SIGNALS)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    time = [100.0]
    monkeypatch.setattr("engine.termination.time.monotonic", lambda: time[0])
    return time


@pytest.mark.parametrize("first", SIGNALS)
@BOTH
def test_either_signal_asks_and_either_stops_at_once(
    now: list[float], first: signal.Signals, second: signal.Signals
) -> None:
    shown = io.StringIO()
    with StopFlag(shown, "stopping") as stop:
        assert not stop.requested
        signal.raise_signal(first)
        assert stop.requested
        assert stop.terminated is (first is signal.SIGTERM)
        assert shown.getvalue() == "\nstopping\n"
        now[0] += HANDED_ON
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(second)
    assert {number: signal.getsignal(number) for number in SIGNALS} == HANDLERS


@pytest.mark.parametrize(
    ("first", "second", "stops"),
    [
        (signal.SIGINT, signal.SIGINT, True),
        (signal.SIGINT, signal.SIGTERM, False),
        (signal.SIGTERM, signal.SIGINT, False),  # a sweep tells its jobs what a scheduler has told them
        (signal.SIGTERM, signal.SIGTERM, False),  # `timeout` tells its program, then the program's group
    ],
)
def test_a_sigterm_that_is_handed_on_is_the_first_again(
    now: list[float], first: signal.Signals, second: signal.Signals, stops: bool
) -> None:
    shown = io.StringIO()
    with StopFlag(shown, "stopping") as stop:
        signal.raise_signal(first)
        now[0] += 0.9 * HANDED_ON
        if stops:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(second)
        else:
            signal.raise_signal(second)
        assert stop.terminated is (signal.SIGTERM in (first, second))
    assert shown.getvalue() == "\nstopping\n"


def test_an_echo_is_the_first_signal_again(now: list[float]) -> None:
    with StopFlag(io.StringIO(), "stopping", echo=5.0) as stop:
        for later in (0.0, 0.1, 4.8):
            now[0] += later
            signal.raise_signal(signal.SIGTERM)
        assert stop.requested
        now[0] += 0.2
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@BOTH
def test_after_a_stop_from_the_program_s_side_a_signal_stops_at_once(second: signal.Signals) -> None:
    with StopFlag(io.StringIO(), "stopping", echo=5.0) as stop:
        stop.request()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(second)


def test_outside_of_a_flag_sigterm_is_ctrl_c_once_for_as_long_as_it_is_handed_on(now: list[float]) -> None:
    with sigterm_as_ctrl_c():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        now[0] += 0.9 * HANDED_ON
        signal.raise_signal(signal.SIGTERM)
        now[0] += 0.1 * HANDED_ON + 1e-6
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_program_that_ignores_or_handles_sigterm_goes_on_to_do_so() -> None:
    for own in (signal.SIG_IGN, lambda number, frame: None):
        former = signal.signal(signal.SIGTERM, own)
        try:
            with sigterm_as_ctrl_c():
                assert signal.getsignal(signal.SIGTERM) is own
            assert signal.getsignal(signal.SIGTERM) is own
        finally:
            signal.signal(signal.SIGTERM, former)
