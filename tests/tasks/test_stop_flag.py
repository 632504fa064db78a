"""The flag that signals raise: the first asks, the second stops at once; former handlers come back."""

from __future__ import annotations

import io
import signal

import pytest

from engine.tasks.interrupts import ANY_END, CTRL_C, StopFlag

HANDLERS = {number: signal.getsignal(number) for number in ANY_END}


@pytest.mark.parametrize("first", ANY_END)
@pytest.mark.parametrize("second", ANY_END)
def test_either_signal_asks_and_either_stops_at_once(first: signal.Signals, second: signal.Signals) -> None:
    shown = io.StringIO()
    with StopFlag(shown, "stopping", ANY_END) as stop:
        assert not stop.requested
        signal.raise_signal(first)
        assert stop.requested
        assert shown.getvalue() == "\nstopping\n"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(second)
    assert {number: signal.getsignal(number) for number in ANY_END} == HANDLERS


def test_other_tasks_leave_sigterm_alone() -> None:
    with StopFlag(io.StringIO()):
        assert signal.getsignal(signal.SIGTERM) is HANDLERS[signal.SIGTERM]
        assert signal.getsignal(signal.SIGINT) is not HANDLERS[signal.SIGINT]
    assert CTRL_C == (signal.SIGINT,)


def test_an_echo_is_the_first_signal_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("engine.tasks.interrupts.time.monotonic", lambda: now[0])
    with StopFlag(io.StringIO(), "stopping", ANY_END, echo=5.0) as stop:
        for later in (0.0, 0.1, 4.8):
            now[0] += later
            signal.raise_signal(signal.SIGTERM)
        assert stop.requested
        now[0] += 0.2
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_after_a_stop_from_the_program_s_side_a_signal_stops_at_once() -> None:
    with StopFlag(io.StringIO(), "stopping", ANY_END, echo=5.0) as stop:
        stop.request()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
