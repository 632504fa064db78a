"""Sweeps whose jobs end in every way there is: one row each, and the right exit code."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import time
from pathlib import Path

import pytest
from sweep_cases import CRASH, manifest, start, states

from engine.runs import read_run
from engine.sweeps.folder import JOB, JOBS, LOG, SweepFolder
from engine.sweeps.supervise import Supervisor

pytestmark = pytest.mark.usefixtures("no_report")


def job(folder: Path, title: str) -> dict:
    ids = {" ".join(f"{k}={v}" for k, v in c["varied"].items()): c["id"] for c in manifest(folder)["cells"]}
    return json.loads((folder / JOBS / ids[title] / JOB).read_text())


def test_every_end_is_a_row_and_the_sweep_goes_on(cli):
    ran = cli("-m", *CRASH, "task.how=kill,raise,memory", "cache.page_size=16,0")
    kinds = {"kill": "killed", "raise": "failed", "memory": "out_of_memory"}
    assert states(ran.folder) == {
        f"task.how={how} cache.page_size={size}": state if size else "rejected"
        for how, state in kinds.items()
        for size in (16, 0)
    }
    assert ran.code == 1, "nothing finished"
    reasons = {how: job(ran.folder, f"task.how={how} cache.page_size=16")["reason"] for how in kinds}
    assert reasons["kill"] == "killed by SIGKILL"
    assert reasons["raise"] == "RuntimeError: task=crash raised this on purpose"
    assert "MemoryError" in reasons["memory"]
    assert job(ran.folder, "task.how=kill cache.page_size=16")["exit_code"] == -signal.SIGKILL
    log = next(ran.folder.glob(f"{JOBS}/*/{LOG}")).read_text()
    assert "task=crash: this job ends by task.how=" in log
    assert "6 cells: 3 rejected, 1 killed, 1 failed, 1 out of memory" in ran.out
    assert f"resume={ran.folder} retry=failed" in ran.out


def test_a_job_past_its_time_is_stopped(cli):
    ran = cli("-m", *CRASH, "task.how=hang", "sweep.timeout=2")
    assert (job(ran.folder, "")["state"], ran.code) == ("timeout", 1)
    assert "sweep.timeout=2" in job(ran.folder, "")["reason"]


def test_failed_rows_and_rejected_ones_leave_exit_0_unless_it_is_strict(cli):
    line = (
        "-m",
        "model=fake",
        "device=cpu",
        "task=generate,crash",
        "sampling.max_tokens=2",
        "workload.limit=1",
    )
    ran = cli(*line, "cache.page_size=16,0")
    assert sorted(states(ran.folder).values()) == ["finished", "killed", "rejected", "rejected"]
    assert ran.code == 0
    strict = cli("resume=" + str(ran.folder), "sweep.strict=true")
    assert strict.code == 1


def test_fail_fast_starts_nothing_after_a_failure(cli):
    ran = cli("-m", *CRASH, "cache.page_size=8,16", "sweep.fail_fast=true")
    assert list(states(ran.folder).values()) == ["killed", ""]
    assert ran.code == 1
    assert "2 cells: 1 killed, 1 not run" in ran.out
    again = cli(f"resume={ran.folder}", "sweep.fail_fast=false")
    assert list(states(ran.folder).values()) == ["killed"] * 2, "the failed one is not done again unasked"
    assert again.err.count("job ") == 1
    assert job(ran.folder, "cache.page_size=8")["attempt"] == 1


def test_failed_jobs_are_done_again_when_asked(cli):
    ran = cli("-m", *CRASH, "task.how=raise,kill")
    again = cli(f"resume={ran.folder}", "retry=killed")
    assert [job(ran.folder, f"task.how={how}")["attempt"] for how in ("raise", "kill")] == [1, 2]
    assert again.folder == ran.folder
    listed = cli(f"resume={ran.folder}", "retry=failed", "--dry-run").out
    assert listed.splitlines()[0] == "2 cells: 2 to do"


def test_progress_says_where_it_is_how_long_it_takes_and_what_is_best(cli):
    line = ("-m", "model=fake", "device=cpu", "sampling.max_tokens=2,5", "workload.limit=1")
    lines = cli(*line, "sweep.figure=output_tokens", "sweep.better=lower").err.splitlines()
    assert lines[0] == "job 1 of 2: sampling.max_tokens=2"
    assert re.fullmatch(
        r"\[1/2\] finished in [\d.]+ s, output tokens 2  sampling.max_tokens=2; about [\d.]+ s left; "
        r"best so far: output tokens 2 with sampling.max_tokens=2",
        lines[1],
    )
    assert lines[2] == "job 2 of 2: sampling.max_tokens=5"
    assert re.fullmatch(
        r"\[2/2\] finished in [\d.]+ s, output tokens 5  sampling.max_tokens=5; "
        r"best so far: output tokens 2 with sampling.max_tokens=2",
        lines[3],
    )


def test_a_dry_run_lists_cells_and_reasons_and_leaves_nothing(cli, tmp_path):
    ran = cli("-m", *CRASH, "cache.page_size=16,0,16", "--dry-run")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0] == "2 cells: 1 to do, 1 rejected"
    assert "the same config as model=tiny device=cpu task=crash cache.page_size=16" in lines[2]
    assert "cache.page_size=0 has to be at least 1" in lines[4]
    assert list(tmp_path.iterdir()) == []
    assert cli("--dry-run", *CRASH).code == 1


def test_a_wrong_command_line_leaves_nothing(cli, tmp_path):
    for line in (
        ["-m", "attention=trion,torch"],
        ["-m", "model=tiny", "+spec.x=1"],
        ["-m", *CRASH, "hydra/launcher=nope"],
        ["-m", *CRASH, "hydra.sweep.dir=/proc/no/such"],
        ["resume=nowhere"],
        [f"resume={tmp_path}"],
        ["retry=failed"],
        ["sweep=nope"],
        ["-m", *CRASH, "hydra.run.dir=here"],
        ["-m", *CRASH, "hydra.sweep.subdir=here"],
        ["-m", *CRASH, "hydra/sweeper=optuna"],
    ):
        ran = cli(*line)
        assert ran.code == 1, line
        assert ran.err.startswith("error: "), line
        assert ran.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_launcher_that_is_not_installed_says_how_to_get_it(cli, monkeypatch):
    monkeypatch.setattr("engine.sweeps.launch.EXTRAS", {"absent": "some"})
    assert "pip install 'syncless[some]'" in cli("-m", *CRASH, "hydra/launcher=absent").err


def test_jobs_die_with_their_sweep(tmp_path):
    running = start(tmp_path, "-m", *CRASH, "task.how=hang", "hydra.sweep.dir=s")
    log = _wait_for(tmp_path, f"s/{JOBS}/*/{LOG}", "this job ends by")
    children = _children(running.pid)
    assert children
    running.kill()
    running.communicate()
    deadline = time.monotonic() + 10
    while any(_alive(child) for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_alive(child) for child in children)
    assert not (log.parent / JOB).exists(), "nobody was there to write it"


def test_any_text_reaches_its_job_as_it_was_typed(cli):
    ran = cli("-m", *CRASH, r"prompt='a, b@c 50%=x','it\'s ${y} #1'", "hydra.sweep.dir=my sweep, 50%")
    prompts = {read_run(path.parent)[0]["prompt"] for path in ran.folder.rglob("run.json")}
    assert prompts == {"a, b@c 50%=x", "it's ${y} #1"}
    assert ran.folder.name == "my sweep, 50%"
    assert f"'resume={ran.folder}'" in ran.out


def test_only_plain_data_crosses_to_where_a_job_runs(tmp_path):
    supervisor = Supervisor(str(tmp_path), str(tmp_path), {"a": ("x=1",)}, 1.0, False)
    assert pickle.loads(pickle.dumps(supervisor)) == supervisor


def test_a_job_that_another_process_holds_is_left_to_it(cli, caplog):
    ran = cli("-m", *CRASH, "sweep.fail_fast=true")
    (cell,) = manifest(ran.folder)["cells"]
    with SweepFolder(ran.folder).job_locked(cell["id"]) as free:
        assert free
        again = cli(f"resume={ran.folder}", "retry=failed")
    assert again.code == 1
    assert "other processes still hold them" in caplog.text
    assert job(ran.folder, "")["attempt"] == 1


def test_a_sweep_that_somebody_works_on_is_refused(cli):
    ran = cli("-m", *CRASH)
    with SweepFolder(ran.folder).locked():
        refused = cli(f"resume={ran.folder}", "retry=failed")
    assert refused.code == 1
    assert f"is being worked on by process {os.getpid()}" in refused.err


def _wait_for(where: Path, pattern: str, text: str) -> Path:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for path in where.glob(pattern):
            if text in path.read_text():
                return path
        time.sleep(0.05)
    raise AssertionError(f"{pattern} never said {text}")


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_cannot_be_written_down_is_said(cli, monkeypatch, caplog):
    def full(self: SweepFolder, state: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SweepFolder, "write_state", full)
    ran = cli("-m", *CRASH, "task.how=raise")
    assert ran.code == 1
    assert "No space left on device" in caplog.text
    assert "other processes" not in caplog.text
