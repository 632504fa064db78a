"""Tasks as processes: Ctrl-C, a closed pipe, the streams, and what an import costs."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.code_state import PACKAGE_ROOT
from engine.runs import OUTPUTS, RESULT, read_lines

LONG = ("model=fake", "threads=1", "prompt=count", "sampling.max_tokens=null", "sampling.ignore_eos=true")
LIGHT = (
    "engine.tasks.base",
    "engine.tasks.generate",
    "engine.tasks.chat",
    "engine.tasks.verify",
    "engine.tasks.bench",
    "engine.workloads.builtin",
    "engine.workloads.file",
    "engine.workloads.random",
    "engine.runs",
    "engine.metrics",
    "engine.snapshot",
    "engine.replay.cli",
    "engine.replay.engines",
    "engine.diff.cli",
)


def start(tmp_path: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)}
    command = [sys.executable, "-P", "-m", "engine", *arguments, f"hydra.run.dir={tmp_path}/run"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes)  # type: ignore[call-overload, no-any-return]


def test_first_ctrl_c_saves_and_exits_130(tmp_path: Path) -> None:
    process = start(tmp_path, *LONG, "model.max_positions=200000", "cache.max_context=100000")
    assert process.stdout.read(5)  # type: ignore[union-attr]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.decode(errors="replace").splitlines()[-1] == str(tmp_path / "run")
    assert b"Traceback" not in err
    (row,) = read_lines(tmp_path / "run" / OUTPUTS)
    assert row["completions"][0]["finish_reason"] == "cancelled"
    assert len(row["completions"][0]["token_ids"]) > 0
    assert json.loads((tmp_path / "run" / RESULT).read_text())["interrupted"] is True


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    process = start(tmp_path, *LONG, "model.max_positions=200000", "cache.max_context=100000")
    assert process.stdout.read(5)  # type: ignore[union-attr]
    process.stdout.close()  # type: ignore[union-attr]
    err = process.stderr.read()  # type: ignore[union-attr]
    assert process.wait(timeout=60) == 141
    assert err == b""


@pytest.mark.parametrize("task", ["generate", "bench", "verify"])
def test_json_mode_has_one_object_on_stdout(tmp_path: Path, task: str) -> None:
    extra = ("workload.limit=2", "sampling.max_tokens=4", f"task={task}", "task.format=json")
    process = start(tmp_path, "model=fake", "threads=1", *extra)
    out, _ = process.communicate(timeout=100)
    document = json.loads(out)
    saved = json.loads((tmp_path / "run" / RESULT).read_text())
    assert process.returncode == 0
    assert document == {**saved, "run": str(tmp_path / "run")}
    assert document["task"] == task


def test_importing_tasks_does_not_import_torch() -> None:
    code = f"import sys; [__import__(name) for name in {LIGHT!r}]; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE_ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
