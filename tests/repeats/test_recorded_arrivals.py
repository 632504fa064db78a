"""Requests that come by the clock: a replay makes the batches that the clock made, without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.answers import Delta
from engine.core import EngineCore
from engine.replay.course import Arrival, Line, read_course
from engine.tasks import drive
from engine.tasks.base import EXIT_DIFFERENT, EXIT_OK
from engine.tasks.pace import Pace

POISSON = ("arrivals=poisson", "arrivals.rate=150", "sampling.max_tokens=24", "sampling=creative")


def _arrives(line: Line) -> bool:
    return isinstance(line.entry, Arrival)


class Clock:
    """Time that passes with an engine's turns, and while somebody sleeps."""

    def __init__(self) -> None:
        self.now, self.turn = 0.0, 0.004  # seconds; of a turn

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which requests arrive. A turn takes 4 ms; a test may let it take longer in the replay."""
    found, plain = Clock(), EngineCore.step

    def step(self: EngineCore) -> list[Delta]:
        found.now += found.turn
        return plain(self)

    monkeypatch.setattr(EngineCore, "step", step)
    monkeypatch.setattr(drive, "Pace", lambda: Pace(clock=lambda: found.now, sleep=found.sleep))
    return found


@pytest.mark.usefixtures("batch_matters")
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("overlap=none",),
        ("scheduler.chunk_tokens=24",),
        ("scheduler.max_running=3", "scheduler=longest_prefix"),
        ("task=bench", "task.repeats=2", "task.warmup=0", "task.concurrency=3"),
        ("spec=ngram", "attention=torch"),
        ("sampling.n=2",),
        (
            "workload=multi_turn",
            "workload.count=3",
            "workload.turns=2",
            "task.concurrency=2",
            "task=bench",
            "task.repeats=1",
            "task.warmup=0",
        ),
    ],
)
def test_batches_of_the_clock_are_made_again(
    run: Any, again: Any, clock: Clock, overrides: tuple[str, ...]
) -> None:
    folder = run(*POISSON, *overrides)
    places = [line.entry.applied for line in read_course(folder / "schedule.jsonl") if _arrives(line)]
    assert len(set(places)) > 3, "they came one after the other"
    clock.turn = 0.011
    code, out, report = again(folder)
    assert report["courses"][0]["parted"] is None
    assert (code, report["identical"]) == (EXIT_OK, True), out
    assert (Path(out.splitlines()[-1]) / "schedule.jsonl").read_bytes() == (
        folder / "schedule.jsonl"
    ).read_bytes()


@pytest.mark.usefixtures("batch_matters")
def test_without_a_recording_the_clock_makes_other_batches(run: Any, again: Any, clock: Clock) -> None:
    """The test above has power: the same folder, not followed, gives other tokens."""
    folder = run(*POISSON, "record=false")
    clock.turn = 0.011
    assert not (folder / "schedule.jsonl").exists()
    code, out, report = again(folder)
    assert (code, report["identical"]) == (EXIT_DIFFERENT, False)
    assert "batches: not recorded" in out


@pytest.mark.model
def test_the_embedded_model_with_its_draft(run: Any, again: Any) -> None:
    """Four-bit products and adaptive drafts: batches and widths are those of the run, and so are the ids."""
    ask = ("spec=eagle3", "sampling=creative", "sampling.max_tokens=12", "workload.limit=4", "threads=1")
    folder = run(*ask, "arrivals=poisson", "arrivals.rate=8", base=())
    code, out, report = again(folder)
    assert (code, report["courses"][0]["parted"], report["changed"]) == (EXIT_OK, None, {}), out
    facts = json.loads((folder / "run.json").read_text())
    assert set(facts["draft_files"]) == {"config.json", "model.safetensors"}
