"""The kernels of draft trees compile for GPUs that are not here; a process of its own, since this one
interprets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "compile_drafting.py"


@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_of_trees_compile(capability: int, tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(SCRIPT.parents[2])}
    command = [sys.executable, str(SCRIPT), str(capability)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.splitlines()) == 12
