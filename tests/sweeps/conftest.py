"""Fixtures of the tests of sweeps: a command line in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sweep_cases import Ran

from engine.cli import main


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ran]:
    """Run a command line in this process (its jobs are processes all the same), in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = main(list(arguments))
        done = capsys.readouterr()
        return Ran(code, done.out, done.err)

    return run


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report has tests of its own, and takes its time."""
    monkeypatch.setattr("engine.report.write", lambda directories, **_: Path(directories[0]) / "report.html")
