"""Sweep folders in every state that a sweep can leave them in, and single runs."""

from __future__ import annotations

import json

import pytest
from sweep_folders import bench, cell, write_job, write_sweep

from engine import report
from engine.errors import UserError
from engine.report.reading import read_all
from engine.report.rows import State

SPECS = ("none", "ngram", "eagle3")


def sweep_of(folder, **more):
    cells = [cell({"spec": spec}) for spec in SPECS]
    return write_sweep(folder, cells, **more), cells


def test_states_of_jobs(tmp_path):
    states = ["finished", "failed", "killed", "timeout", "out_of_memory", "interrupted"]
    cells = [cell({"task.concurrency": n}) for n in range(len(states))]
    folder = write_sweep(tmp_path / "s", [*cells, cell({"task.concurrency": 99}, reason="no such thing")])
    for one, state in zip(cells, states, strict=True):
        result = bench([1.0]) if state == "finished" else None
        write_job(folder, one, result, state=state, reason=None if result else f"it {state}")
    rows = read_all([folder])[0].rows
    assert [row.state.value for row in rows] == [state.replace("_", " ") for state in states] + ["rejected"]
    assert [row.reason for row in rows] == [None, *(f"it {state}" for state in states[1:]), "no such thing"]
    assert [row.number for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert [row.measured for row in rows] == [True] + [False] * 6


def test_half_finished_sweep(tmp_path):
    """Before the first job, in the middle of one, and after a torn file."""
    folder, (first, second, third) = sweep_of(tmp_path / "s")
    assert [row.state for row in read_all([folder])[0].rows] == [State.WAITING] * 3
    report.write([folder], page=False)
    assert "3 waiting" in (folder / "summary.md").read_text()
    job = write_job(folder, first, bench([100.0]))
    (job / "result.json").write_text('{"task": "ben')
    (folder / "jobs" / second["id"]).mkdir()
    rows = read_all([folder])[0].rows
    assert [row.state for row in rows] == [State.FAILED, State.UNFINISHED, State.WAITING]
    assert "result.json" in rows[0].reason
    write_job(folder, third, bench([120.0]))
    report.write([folder])
    assert "1 finished" in (folder / "summary.md").read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "damaged"),
        ("[]", "damaged"),
        ('{"version": 2, "cells": []}', "version 2"),
        ('{"version": 1}', "damaged"),
    ],
)
def test_a_broken_manifest_is_named(tmp_path, text, said):
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(UserError, match=said):
        report.write([tmp_path])


def test_folders_that_are_neither_are_named(tmp_path):
    with pytest.raises(UserError, match="holds neither a sweep"):
        report.write([tmp_path])
    with pytest.raises(UserError, match="is no folder"):
        report.write([tmp_path / "absent"])
    with pytest.raises(UserError, match="no folder given"):
        report.write([])


def test_junk_in_results_is_no_crash(tmp_path):
    """Whatever a future task writes: the other rows are still reported."""
    junk = [
        {"task": "bench", "output_tokens_per_s": "fast", "runs": [3, None], "spec": 4, "warnings": None},
        {"task": "x", "ttft_ms": [1, 2], "accept_length": {}, "metrics": []},
        {"output_tokens_per_s": None, "runs": {}},
        {"output_tokens_per_s": 0.0, "itl_ms": {"p50": -1}, "spec": {"acceptance_per_position": []}},
    ]
    cells = [cell({"task.concurrency": n}) for n in range(len(junk) + 1)]
    folder = write_sweep(tmp_path / "s", cells)
    for one, result in zip(cells, [*junk, bench([50.0, 51.0, 52.0])], strict=True):
        write_job(folder, one, result)
    page = report.write([folder])
    assert "51.0" in (folder / "summary.md").read_text()
    assert page.is_file()


def test_single_runs_are_compared(tmp_path, run_folder):
    """Run folders without a sweep: keys that differ are found; an equal config goes to a second one."""
    first = run_folder(tmp_path / "a", ["spec=none", "task.concurrency=4"], [100.0, 101.0, 102.0])
    other = run_folder(tmp_path / "b", ["spec=ngram", "task.concurrency=4"], [150.0, 151.0, 152.0])
    again = run_folder(tmp_path / "c", ["spec=none", "task.concurrency=4"], [100.5, 101.0, 101.5])
    sweeps = read_all([first, other, again])
    assert [[row.path.name for row in sweep.rows] for sweep in sweeps] == [["a", "b"], ["c"]]
    assert [row.varied for row in sweeps[0].rows] == [{"spec": "none"}, {"spec": "ngram"}]
    out = tmp_path / "out"
    report.write([first, other, again], out=out, page=False)
    text = (out / "summary.md").read_text()
    assert "1.50x" in text
    assert "B against A" in text
    assert "task.concurrency=4" in text
    assert json.loads((first / "result.json").read_text())["repeats"] == 3  # nothing is written there
    assert not (first / "summary.md").exists()
