"""SIGTERM that reaches a sweep and its jobs alike, or is handed on: one wish, and no job is lost by it."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from pathlib import Path

import pytest
from sweep_cases import TINY, start

from engine.sweeps.folder import JOB, JOBS, SweepFolder
from engine.sweeps.stopping import Stopping
from engine.termination import HANDED_ON

LONG = ("task=bench", *TINY, "spec=none", "task.warmup=0", "task.repeats=100000", "workload.limit=1")


def job_process(sweep: int) -> int:
    """The one process that the sweep has started: "pid (name) state parent ..." of Linux's table."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(place.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended meanwhile
            continue
        found += [int(place.parent.name)] if parent == sweep else []
    (number,) = found
    return number


@pytest.mark.parametrize("everybody", [True, False])
def test_a_job_that_is_told_too_is_interrupted_and_one_that_alone_is_told_was_killed(tmp_path, everybody):
    running = start(tmp_path, "-m", *LONG, "hydra.sweep.dir=s")
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(f"s/{JOBS}/*/workload.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.02)
    job = job_process(running.pid)
    if everybody:
        running.send_signal(signal.SIGTERM)
    os.kill(job, signal.SIGTERM)
    _, err = running.communicate(timeout=60)
    (kept,) = tmp_path.glob(f"s/{JOBS}/*/{JOB}")
    ended = json.loads(kept.read_text())
    assert ended["state"] == ("interrupted" if everybody else "killed"), err
    assert running.returncode == (130 if everybody else 1)
    if not everybody:  # otherwise the sweep's own wish may meet a process that is ending already
        result = json.loads((kept.parent / "result.json").read_text())
        assert (ended["exit_code"], result["task"], result["interrupted"]) == (130, "bench", True)


def test_a_sigterm_that_is_handed_on_kills_no_job(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("engine.termination.time.monotonic", lambda: now[0])
    folder = SweepFolder.create(str(tmp_path / "s"))
    with Stopping(folder, io.StringIO()) as stop:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
        assert (stop.requested, folder.wish()) == (True, "stop")
        now[0] += HANDED_ON
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert folder.wish() != "stop"
