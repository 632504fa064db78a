"""What needs no engine is quick and imports no torch: help, explain, a mistake."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from command_lines import ROOT
from support.pace import within


@pytest.fixture(scope="module")
def bytecode(tmp_path_factory):
    return tmp_path_factory.mktemp("bytecode")


@pytest.mark.parametrize("arguments", [["--help"], ["task=explain"], ["task=explain", "task.format=json"]])
def test_help_and_explain_are_quick_write_nothing_and_import_no_torch(tmp_path, bytecode, arguments):
    code = f"import sys; from engine.cli import main; c = main({arguments!r}); "
    code += "sys.exit(c or 'torch' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(bytecode)}
    env.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # its first start compiles all that is imported, later ones do not

    def once() -> float:
        before = os.times()
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        after = os.times()  # processor time: other work on the machine does not count against us
        used = after.children_user + after.children_system
        return used - before.children_user - before.children_system

    assert within(min(once() for _ in range(3)), 1.0)
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_does_not_import_torch(tmp_path):
    code = (
        "import sys; from engine.cli import main; main(['attention=nope']); sys.exit('torch' in sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, check=False).returncode == 0
