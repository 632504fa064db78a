"""The lookup kernels compile for GPUs that are not here."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.compiling import compiled

SCRIPT = Path(__file__).parent / "compile_lookups.py"


@pytest.mark.parametrize("capability", [80, 90])
def test_lookup_kernels_compile(capability: int, tmp_path: Path) -> None:
    assert len(compiled(SCRIPT, tmp_path, capability)) == 13
