"""Requests that come by the clock: a replay makes the batches that the clock made, without one."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from engine.core import EngineCore
from engine.request import Delta
from engine.tasks.base import EXIT_DIFFERENT, EXIT_OK

POISSON = ("arrivals=poisson", "arrivals.rate=400", "sampling.max_tokens=24", "sampling=creative")


def ids_of(folder: Path) -> list[list[int]]:
    rows = [json.loads(line) for line in (folder / "outputs.jsonl").read_text().splitlines()]
    rows.sort(key=lambda row: (row["index"], row["turn"]))
    return [sample["token_ids"] for row in rows for sample in row["completions"]]


@pytest.fixture
def jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns of random length, so that no two runs meet the clock at the same steps."""
    draw, plain = random.Random(), EngineCore.step

    def step(self: EngineCore) -> list[Delta]:
        time.sleep(draw.uniform(0, 0.002))
        return plain(self)

    monkeypatch.setattr(EngineCore, "step", step)


@pytest.mark.usefixtures("batch_matters", "jitter")
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("overlap=none",),
        ("scheduler.chunk_tokens=24",),
        ("scheduler.max_running=3", "scheduler=longest_prefix"),
        ("task=bench", "task.repeats=2", "task.concurrency=3"),
        ("spec=ngram", "attention=torch"),
        ("sampling.n=2",),
        ("workload=multi_turn", "workload.count=3", "workload.turns=2", "task.concurrency=2", "task=bench"),
    ],
)
def test_batches_of_the_clock_are_made_again(run: Any, again: Any, overrides: tuple[str, ...]) -> None:
    folder = run(*POISSON, *overrides)
    code, out, report = again(folder)
    assert report["courses"][0]["parted"] is None
    assert (code, report["identical"]) == (EXIT_OK, True), out
    assert (Path(out.splitlines()[-1]) / "schedule.jsonl").read_bytes() == (
        folder / "schedule.jsonl"
    ).read_bytes()


@pytest.mark.usefixtures("batch_matters", "jitter")
def test_without_a_recording_the_clock_makes_other_batches(run: Any, again: Any) -> None:
    """The test above has power: the same folder, not followed, gives other tokens."""
    folder = run(*POISSON, "record=false")
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
