"""Shared by the tests of the command line: one call, its exit code and its two streams."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from engine.cli import main


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    def json(self) -> dict:
        return json.loads(self.out)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path, monkeypatch) -> Callable[..., Ran]:
    """Run a command line in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = main(list(arguments))
        done = capsys.readouterr()
        return Ran(code, done.out, done.err)

    return run
