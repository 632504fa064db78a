"""Runs of command lines in a folder of their own, and replays from elsewhere, all in this process."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.cli.main import main
from engine.models.fake import FakeLM
from engine.replay.cli import main as replay_main
from engine.tasks.base import EXIT_OK

BASE = ("model=fake", "sampling.max_tokens=6", "threads=1")
Run = Callable[..., Path]
Again = Callable[..., tuple[int, str, dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line; the run folder it left."""

    def do(*overrides: str, stdin: str = "", code: int = EXIT_OK, base: tuple[str, ...] = BASE) -> Path:
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        monkeypatch.chdir(home)
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        assert main([*base, *overrides]) == code
        return Path(capsys.readouterr().out.splitlines()[-1])

    return do


@pytest.fixture
def again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Again:
    """Replay a folder from elsewhere: (exit code, stdout, replay.json, {} where none is named)."""

    def do(folder: Path, *extra: str) -> tuple[int, str, dict[str, Any]]:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        monkeypatch.chdir(elsewhere)
        monkeypatch.setattr("sys.stdin", io.StringIO())
        code = replay_main([str(folder), *extra])
        out = capsys.readouterr().out
        if not out or out.startswith("{"):  # refused, or JSON, which names no folder in its last line
            return code, out, {}
        report = Path(out.splitlines()[-1]) / "replay.json"
        return code, out, json.loads(report.read_text())

    return do


@pytest.fixture
def batch_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake model whose tokens depend on the number of requests in their batch, as rounding does for a real
    one, but always."""
    plain = FakeLM._digest

    def digest(self: FakeLM, batch: Any, kv: Any) -> torch.Tensor:
        return torch.remainder(
            plain(self, batch, kv) + 7919 * batch.size + 104729 * batch.max_query, 2147483647
        )

    monkeypatch.setattr(FakeLM, "_digest", digest)
