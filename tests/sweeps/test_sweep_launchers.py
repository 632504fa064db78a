"""The same sweep under every launcher that runs on one machine: rows, reasons, interruption."""

from __future__ import annotations

import importlib.util
import signal
import time
from pathlib import Path

import pytest
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from sweep_cases import CRASH, manifest, start, states

from engine.sweeps.folder import JOBS, LOG, SweepFolder
from engine.sweeps.launch import EXTRAS, OURS, launch_plan

PLUGINS = {"joblib": "joblib", "submitit_local": "submitit", "ray": "ray"}
ONE_MACHINE = ("joblib", "submitit_local", "ray")


def launcher(name: str) -> tuple[str, ...]:
    """Its overrides; skips where it is not installed."""
    plugin = PLUGINS[name]
    if importlib.util.find_spec(f"hydra_plugins.hydra_{plugin}_launcher") is None:
        pytest.skip(f"hydra/launcher={name}: pip install 'syncless[{plugin}]'")
    return (f"hydra/launcher={name}",)


@pytest.mark.parametrize("name", ONE_MACHINE)
def test_jobs_end_as_they_should_under(cli, no_report, name):
    line = (
        "-m",
        "model=fake",
        "device=cpu",
        "task=generate,crash",
        "sampling.max_tokens=2",
        "workload.limit=1",
    )
    ran = cli(*line, *launcher(name))
    assert states(ran.folder) == {"task=generate": "finished", "task=crash": "killed"}
    assert ran.code == 0
    assert {path.name for path in (ran.folder / JOBS).iterdir()} == {
        c["id"] for c in manifest(ran.folder)["cells"]
    }


@pytest.mark.parametrize("name", ["joblib", "submitit_local"])
def test_an_interruption_reaches_the_jobs_under(tmp_path, name):
    overrides = launcher(name)
    line = (*CRASH, "task.how=hang", "cache.page_size=8,16", "hydra.sweep.dir=s", *overrides)
    running = start(tmp_path, "-m", *line)
    _wait_for_jobs(tmp_path / "s", 2)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    assert list(states(tmp_path / "s").values()) == ["interrupted"] * 2
    assert "2 cells: 2 interrupted" in out


@pytest.mark.parametrize("name", sorted(OURS))
def test_our_launcher_files_set_what_their_plugin_knows(tmp_path, name):
    plugin = PLUGINS.get(OURS[name], "submitit")
    if importlib.util.find_spec(f"hydra_plugins.hydra_{plugin}_launcher") is None:
        pytest.skip(f"hydra/launcher={name}: pip install 'syncless[{EXTRAS[OURS[name]]}]'")
    with launch_plan([f"hydra/launcher={name}"]) as plan:
        classes = {f"{c.__module__}.{c.__name__}" for c in Plugins.instance().discover(Launcher)}
        assert plan.config.hydra.launcher._target_ in classes


def test_launchers_that_exist_are_named_in_the_refusal(cli):
    ran = cli("-m", *CRASH, "hydra/launcher=slrum")
    assert ran.code == 1
    for name in (*EXTRAS, *OURS, "basic", "did you mean slurm?"):
        assert name in ran.err


def test_a_launcher_that_breaks_loses_no_row(cli, no_report, monkeypatch, caplog):
    def broken(self, directory, cell_ids, task):
        SweepFolder(Path(directory))
        raise RuntimeError("no machine answered")

    monkeypatch.setattr("engine.sweeps.launch.LaunchPlan.launch", broken)
    ran = cli("-m", *CRASH)
    assert ran.code == 1
    assert "the launcher failed: RuntimeError: no machine answered" in caplog.text
    assert "go on: python -m engine resume=" in ran.out


def _wait_for_jobs(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        logs = [path.read_text() for path in folder.glob(f"{JOBS}/*/{LOG}")]
        if sum("this job ends by" in log for log in logs) == count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{count} jobs never ran at a time")
