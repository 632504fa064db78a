"""Every kernel compiles for GPUs that are not here: what the interpreter accepts, they may not."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.compiling import compiled

SCRIPT = Path(__file__).parent / "compile_for_gpu.py"


@pytest.mark.parametrize(
    ("capability", "dtype", "variants"), [(90, "bf16", 35), (90, "fp32", 30), (80, "fp16", 32)]
)
def test_kernels_compile(capability: int, dtype: str, variants: int, tmp_path: Path) -> None:
    assert len(compiled(SCRIPT, tmp_path, capability, dtype)) == variants
