"""Shared by the tests of sweeps: command lines, sweeps as processes, and what a sweep's folder holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.code_state import PACKAGE_ROOT
from engine.sweeps.folder import JOB, JOBS, MANIFEST

CRASH = ("model=tiny", "device=cpu", "task=crash")  # jobs that need no torch
TINY = ("model=tiny", "device=cpu", "threads=1", "seed=1", "sampling.max_tokens=6")


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def folder(self) -> Path:
        return Path(self.out.splitlines()[-1])


def start(cwd: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """A sweep as a process of its own."""
    command = [sys.executable, "-P", "-m", "engine", *arguments]
    env = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=cwd, env=env, text=True, **pipes, **options)


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / MANIFEST).read_text())


def states(folder: Path) -> dict[str, str]:
    """title of a cell -> how its job ended, or "rejected", or "" where nothing has run."""
    found = {}
    for cell in manifest(folder)["cells"]:
        job = folder / JOBS / cell["id"] / JOB
        state = json.loads(job.read_text())["state"] if job.is_file() else ""
        title = " ".join(f"{key}={value}" for key, value in cell["varied"].items())
        found[title] = state if cell["verdict"] == "ok" else cell["verdict"]
    return found


def outputs(folder: Path) -> dict[str, list[Any]]:
    """cell -> the token ids that its job gave."""
    found = {}
    for path in sorted(folder.glob(f"{JOBS}/*/outputs.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        found[path.parent.name] = [[s["token_ids"] for s in row["completions"]] for row in rows]
    return found


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a folder: when it was written, and its bytes."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(f.relative_to(folder)): (f.stat().st_mtime_ns, f.read_bytes()) for f in files}
