"""The product kernels compile for GPUs that are not here, with dependent launch where those have it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.compiling import compiled

SCRIPT = Path(__file__).parent / "compile_linear.py"


@pytest.mark.parametrize(
    ("capability", "dtype", "variants"),
    [(90, "bf16", 27), (90, "fp32", 10), (90, "fp16", 14), (80, "fp16", 14)],
)
def test_products_compile(capability: int, dtype: str, variants: int, tmp_path: Path) -> None:
    assert len(compiled(SCRIPT, tmp_path, capability, dtype)) == variants
