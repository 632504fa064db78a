"""Several sweeps: which differences are flagged, which are noise, and what else is not the same."""

from __future__ import annotations

import random

from sweep_folders import bench, cell, write_job, write_sweep

from engine import report
from engine.report.comparing import compare
from engine.report.reading import read_all

SIZES = range(12)


def sweep(folder, factors, *, noise=0.004, seed=0, repeats=3, commit="a" * 40, **job):
    """Twelve cells; factors: cell -> how many times its usual speed."""
    rng = random.Random(seed)
    cells = [cell({"scheduler.max_running": n}) for n in SIZES]
    write_sweep(folder, cells)
    for n, one in zip(SIZES, cells, strict=True):
        speed = 100.0 * (n + 1) * factors.get(n, 1.0)
        speeds = [speed * (1 + rng.gauss(0, noise)) for _ in range(repeats)]
        write_job(folder, one, bench(speeds), commit=commit, **job)
    return folder


def flagged(a, b):
    return {
        (change.before.words["scheduler.max_running"], change.figure.key): change.verdict
        for change in compare(read_all([a, b]))[0].changes
        if change.flagged
    }


def test_differences_beyond_the_noise_are_flagged_and_no_others(tmp_path):
    a = sweep(tmp_path / "a", {}, seed=1)
    b = sweep(tmp_path / "b", {3: 0.85, 7: 1.2}, seed=2)
    found = flagged(a, b)
    assert found[("3", "output_tokens_per_s")] == "worse"
    assert found[("7", "output_tokens_per_s")] == "better"
    assert {size for size, _ in found} == {"3", "7"}


def test_equal_sweeps_are_rarely_flagged(tmp_path):
    """Noise of 3%, 20 pairs of sweeps, 12 cells with three figures: a false alarm in one pair at most."""
    alarms = 0
    for seed in range(20):
        a = sweep(tmp_path / f"a{seed}", {}, seed=seed, noise=0.03)
        b = sweep(tmp_path / f"b{seed}", {}, seed=1000 + seed, noise=0.03)
        alarms += bool(flagged(a, b))
    assert alarms <= 1


def test_a_small_difference_is_never_flagged_however_sure(tmp_path):
    a = sweep(tmp_path / "a", {}, noise=0.0001)
    b = sweep(tmp_path / "b", dict.fromkeys(SIZES, 1.015), noise=0.0001, seed=3)
    assert flagged(a, b) == {}


def test_two_repeats_are_not_judged(tmp_path):
    a, b = sweep(tmp_path / "a", {}, repeats=2), sweep(tmp_path / "b", {0: 0.5}, repeats=2)
    changes = compare(read_all([a, b]))[0].changes
    assert {change.verdict for change in changes} == {"not judged: fewer than three repeats"}
    report.write([a, b], out=tmp_path / "out")
    assert "not judged" in (tmp_path / "out/summary.md").read_text()


def test_code_and_machine_and_states_that_differ_are_said(tmp_path):
    a = sweep(tmp_path / "a", {}, commit="a" * 40)
    b = sweep(tmp_path / "b", {}, commit="b" * 40, device="NVIDIA H200")
    broken = read_all([b])[0].rows[4]
    for name in ("result.json", "job.json"):
        (broken.path / name).unlink()
    (broken.path / "job.json").write_text('{"state": "out_of_memory", "reason": "no room"}')
    report.write([a, b], out=tmp_path / "out")
    for text in ((tmp_path / "out/summary.md").read_text(), (tmp_path / "out/report.html").read_text()):
        for said in ("aaaaaaaaaa", "bbbbbbbbbb", "NVIDIA H200", "finished, now out of memory", "no room"):
            assert said in text


def test_cells_match_by_their_config_else_by_their_command(tmp_path):
    """A commit that adds a key to the config changes every id."""
    a, b = sweep(tmp_path / "a", {}), sweep(tmp_path / "b", {5: 2.0})
    manifest = (b / "sweep.json").read_text()
    for row in read_all([b])[0].rows:
        manifest = manifest.replace(row.id, f"f{row.id[1:]}")
        row.path.rename(row.path.with_name(f"f{row.id[1:]}"))
    (b / "sweep.json").write_text(manifest)
    assert flagged(a, b)[("5", "output_tokens_per_s")] == "better"
    assert compare(read_all([a, b]))[0].lonely == []


def test_cells_of_one_sweep_alone_are_counted(tmp_path):
    a = sweep(tmp_path / "a", {})
    b = write_sweep(tmp_path / "b", [cell({"scheduler.max_running": 77})])
    assert len(compare(read_all([a, b]))[0].lonely) == 13
    report.write([a, b], out=tmp_path / "out", page=False)
    assert "13 cells are in one of them only" in (tmp_path / "out/summary.md").read_text()
