"""Command lines in processes of their own, and overrides for a run of a second."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAST = ("model=tiny", "sampling.max_tokens=3", "seed=1", "device=cpu")


def process(*arguments: str, cwd: Path, **options) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "engine", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=cwd, env=env, text=True, **{**streams, **options})


def in_shell(line: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} -m engine model=fake device=cpu threads=1 sampling.max_tokens=9 {line}"
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(command, shell=True, cwd=cwd, env=variables, capture_output=True, text=True)
