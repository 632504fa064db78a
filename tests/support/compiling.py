"""Runs a script that compiles kernels for GPUs that are not here; knows neither kernels nor GPUs.

A process of its own, since a test's process may have Triton interpret.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def compiled(script: Path, cache: Path, *arguments: object) -> list[str]:
    """The lines that it printed, one a variant. cache: a folder for what Triton builds."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()
