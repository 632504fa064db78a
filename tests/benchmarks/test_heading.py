"""The command above a page of figures is one that prints them again."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = 'from benchmarks import tables\nprint(tables.heading("cpu")["command"])\n'


@pytest.mark.parametrize("module", ["probe", "folder.probe"])
def test_the_command_of_a_page_can_be_given_again(module: str, tmp_path: Path) -> None:
    """Whatever package the program is in, and with words that a shell would divide."""
    path = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(exist_ok=True)
    path.write_text(PROGRAM)
    words = ["-m", module, "model=dummy", "prompt=two words; $x"]
    said = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert shlex.split(said) == ["python", *words]
