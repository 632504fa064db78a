"""The product kernels compile for GPUs that are not here, with dependent launch where those have it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "compile_linear.py"


@pytest.mark.parametrize(
    ("capability", "dtype", "variants"),
    [(90, "bf16", 21), (90, "fp32", 11), (90, "fp16", 11), (80, "fp16", 11)],
)
def test_products_compile(capability: int, dtype: str, variants: int, tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(SCRIPT.parents[2])}
    command = [sys.executable, str(SCRIPT), str(capability), dtype]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.splitlines()) == variants
