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


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_streamed_attention_compiles(dtype: str, tmp_path: Path) -> None:
    """Two products a strip of 64 columns with 4 instructions each, and as many copies as parts of a block:
    at three places, at one more where two blocks are in flight, for keys and for values."""
    lines = [line.split() for line in compiled(SCRIPT.with_name("compile_stream.py"), tmp_path, dtype)]
    assert [(int(mma), int(copies)) for _, _, _, mma, _, copies, *_ in lines] == [
        (16, 48), (16, 64), (8, 32), (16, 12)
    ]  # fmt: skip
    assert [228 * 1024 // (int(shared) + 1024) for _, shared, *_ in lines[:3]] == [6, 3, 6]
