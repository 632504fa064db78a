"""A sweep that was interrupted and gone on with equals one that was not, and finished jobs are left alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sweep_cases import CRASH, TINY, everything, manifest, outputs, start, states

from engine.errors import UserError
from engine.sweeps.code import of_other_code
from engine.sweeps.folder import JOB, JOBS, LOG, SweepFolder
from engine.sweeps.manifest import manifest_of
from engine.sweeps.study import load_study

SWEEP = ("sweep=smoke", *TINY, "spec=none", "task.repeats=1", "workload.limit=1")


def wait_for(where: Path, pattern: str, count: int = 1) -> list[Path]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = list(where.glob(pattern))
        if len(found) >= count:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{count} x {pattern} never came")


def rows(folder: Path) -> list[tuple[object, ...]]:
    cells = manifest(folder)["cells"]
    kept = ("id", "overrides", "choices", "varied", "verdict", "reason", "duplicates")
    return [tuple(cell[name] for name in kept) for cell in cells]


def test_interrupted_and_resumed_equals_uninterrupted(cli, tmp_path):
    whole = cli(*SWEEP)
    assert whole.code == 0, "rejected cells and a job that kills itself are rows, not a failure of the sweep"
    running = start(tmp_path, *SWEEP, "hydra.sweep.dir=half")
    (finished,) = wait_for(tmp_path, f"half/{JOBS}/*/{JOB}")
    wait_for(tmp_path, f"half/{JOBS}/*/{LOG}", 2)
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    half = Path(out.splitlines()[-1])
    assert f"go on: python -m engine resume={half}" in out
    assert list(states(half).values()).count("finished") == 1
    assert list(states(half).values()).count("interrupted") == 1
    before = everything(finished.parent)

    resumed = cli(f"resume={half}")
    assert resumed.code == 0
    assert resumed.err.startswith("job 2 of 4: ")
    assert everything(finished.parent) == before, "a finished job's folder is not touched"
    ends = sorted(states(half).values())
    assert ends == ["finished"] * 3 + ["killed"] + ["rejected"] * 3
    assert states(half) == states(whole.folder)
    assert rows(half) == rows(whole.folder)
    assert outputs(half) == outputs(whole.folder)
    assert len(outputs(half)) == 3
    for name in ("summary.md", "results.csv", "report.html"):
        assert (half / name).is_file()
        assert (half / name).stat().st_mtime_ns > before["job.json"][0]


def test_nothing_is_left_to_do(cli, no_report):
    ran = cli("-m", *CRASH)
    before = everything(ran.folder / JOBS)
    again = cli(f"resume={ran.folder}")
    assert again.err == ""
    assert everything(ran.folder / JOBS) == before
    listed = cli(f"resume={ran.folder}", "--dry-run")
    assert listed.out.splitlines()[0] == "1 cell: 1 killed"
    assert cli(f"resume={ran.folder}", "retry=failed", "--dry-run").out.splitlines()[0] == "1 cell: 1 to do"


def test_the_second_signal_kills(tmp_path):
    running = start(tmp_path, "-m", *CRASH, "task.how=hang", "cache.page_size=8,16", "hydra.sweep.dir=s")
    (log,) = wait_for(tmp_path, f"s/{JOBS}/*/{LOG}")
    began = time.monotonic()
    running.send_signal(signal.SIGINT)
    while "once more kills them" not in (line := running.stderr.readline()) and line:
        pass
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert time.monotonic() - began < 30
    assert states(tmp_path / "s") == {"cache.page_size=8": "interrupted", "cache.page_size=16": ""}
    assert "2 cells: 1 interrupted, 1 not run" in out
    assert "[1/2] interrupted in " in err
    assert " left" not in err, "nothing runs after it"
    assert log.is_file()


def test_jobs_of_other_code_are_named_when_a_sweep_goes_on(cli, no_report):
    ran = cli("-m", "task=generate", *TINY, "prompt=Hi", "cache.page_size=8,16")
    first, second = sorted((ran.folder / JOBS).iterdir())
    facts = json.loads((first / "run.json").read_text())
    (first / "run.json").write_text(json.dumps({**facts, "code": {"sha256": "0" * 64}}))
    assert of_other_code([first, second, ran.folder]) == [first]
    (second / "job.json").unlink()
    again = cli(f"resume={ran.folder}")
    assert f"1 jobs of this sweep ran on other code than today's ({first.name}" in again.err


def test_another_config_than_at_the_start_is_refused(cli, no_report):
    ran = cli("-m", *CRASH, "cache.page_size=8,16", "sweep.fail_fast=true")
    document = manifest(ran.folder)
    document["cells"][1]["id"] = "0123456789ab"
    (ran.folder / "sweep.json").write_text(json.dumps(document))
    refused = cli(f"resume={ran.folder}")
    assert refused.code == 1
    assert "1 of its cells (cache.page_size=16) compose to another config" in refused.err


@pytest.mark.parametrize(
    ("beside", "words"),
    [
        (["spec=none"], ["spec=none has no place beside it"]),
        (["sweep=smoke"], ["sweep=smoke has no place beside it"]),
        (["hydra.sweep.dir=x"], ["hydra.sweep.dir=x has no place beside it"]),
        (["retry=fialed"], ["retry=fialed", "did you mean failed?"]),
        (["retry="], ["retry= is empty"]),
        (["sweep.timeout=x"], ["sweep.timeout=x"]),
        (["resume=other"], ["resume= is given 2 times"]),
    ],
)
def test_resume_takes_everything_from_its_folder(cli, tmp_path, beside, words):
    folder = SweepFolder.create(str(tmp_path / "s"))
    folder.write_manifest(manifest_of([], load_study(None, []), [], []))
    refused = cli(f"resume={folder.path}", *beside)
    assert refused.code == 1
    for word in words:
        assert word in refused.err


def test_a_damaged_manifest_is_one_sentence(cli, tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "sweep.json").write_text("{")
    assert "sweep.json is damaged" in cli("resume=s").err
    (tmp_path / "s" / "sweep.json").write_text('{"version": 99}')
    assert "another version" in cli("resume=s").err


def test_two_sweeps_of_the_same_second_do_not_touch_each_other(tmp_path):
    both = [start(tmp_path, "-m", *CRASH, f"seed={n}", "hydra.sweep.dir=same") for n in (1, 2)]
    folders = [Path(running.communicate(timeout=120)[0].splitlines()[-1]) for running in both]
    assert {folder.name for folder in folders} == {"same", "same-1"}
    for seed, folder in zip((1, 2), folders, strict=True):
        (cell,) = manifest(folder)["cells"]
        assert f"seed={seed}" in cell["overrides"]
        assert [path.name for path in (folder / JOBS).iterdir()] == [cell["id"]]
        assert list(states(folder).values()) == ["killed"]


def test_simultaneous_folders_are_distinct(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: SweepFolder.create(str(tmp_path / "x")).path, range(8)))
    assert len(set(folders)) == 8


def test_one_process_holds_a_sweep_and_a_job_at_a_time(tmp_path):
    folder = SweepFolder.create(str(tmp_path / "x"))
    with folder.locked(), pytest.raises(UserError, match="is being worked on by process"), folder.locked():
        pass
    with folder.locked(), folder.job_locked("a") as first, folder.job_locked("a") as second:
        assert (first, second) == (True, False)
        with folder.job_locked("b") as other:
            assert other


def test_the_wish_to_stop_is_seen_and_forgotten_at_the_next_start(tmp_path):
    folder = SweepFolder.create(str(tmp_path / "x"))
    assert folder.wish() == ""
    folder.ask("stop")
    assert SweepFolder(folder.path).wish() == "stop"
    with folder.locked():
        assert folder.wish() == ""


def test_the_sweep_itself_imports_no_torch(tmp_path):
    code = (
        f"import sys; from engine.cli import main; main(['-m', *{CRASH!r}]); sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_sweep_in_the_background_can_be_interrupted(tmp_path):
    """A shell without job control has SIGINT ignored in what it starts with `&`; children inherit that."""
    running = start(
        tmp_path,
        "-m",
        *CRASH,
        "task.how=hang",
        "hydra.sweep.dir=s",
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    (log,) = wait_for(tmp_path, f"s/{JOBS}/*/{LOG}")
    while "this job ends by" not in log.read_text():
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    job = json.loads((log.parent / JOB).read_text())
    assert (running.returncode, job["state"], job["exit_code"]) == (130, "interrupted", 130)
