"""Real processes of `task=train_eagle3` that get a signal: exit code, checkpoint, the way on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from training_task import BASE, SMALL, prompts

from engine.code_state import PACKAGE_ROOT
from engine.tasks.base import EXIT_INTERRUPTED
from speculative.eagle3.training.trainer import STATE

ONE = ("-m", "engine")
TWO = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *ONE)


def start(folder: Path, how: Sequence[str], *overrides: str) -> subprocess.Popen[str]:
    """A training of half a minute, in a process group of its own, as a terminal makes it."""
    lines = [*BASE, *SMALL[:-1], "task.trainer.epochs=2000", "task.trainer.save_seconds=1e9", *overrides]
    return subprocess.Popen(
        [sys.executable, *how, "task=train_eagle3", *lines, "hydra.run.dir=run"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PACKAGE_ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_steps(process: subprocess.Popen[str]) -> list[str]:
    """Lines of stderr up to the first progress line."""
    seen: list[str] = []
    assert process.stderr is not None
    for line in process.stderr:
        seen.append(line)
        if " loss " in line:
            return seen
    raise AssertionError("".join(seen))


def children(pid: int) -> list[int]:
    """The processes that a process has started, by Linux's own table: "pid (name) state parent ..."."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if int(place.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(place.parent.name))
    return sorted(found)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_training_with_a_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, ONE, f"task.prompts=[{prompts(tmp_path, 'learn', 'hello', 'what is this')}]")
    wait_for_steps(process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == EXIT_INTERRUPTED, err
    result = json.loads((tmp_path / "run/result.json").read_text())
    state = Path(result["checkpoint"])
    assert (result["stage"], state.name) == ("training", STATE)
    assert torch.load(tmp_path / state, weights_only=True)["place"]["step"] >= 1
    assert all(line in out for line in result["go_on"])
    assert "Traceback" not in err


@pytest.mark.parametrize("told", ["launcher", "everybody", "one"])
def test_two_processes_leave_together_whoever_gets_the_signal(tmp_path: Path, told: str) -> None:
    """A scheduler tells the launcher, a terminal everybody: the launcher then tells its processes again."""
    process = start(tmp_path, TWO, f"task.prompts=[{prompts(tmp_path, 'learn', 'hello', 'what is this')}]")
    wait_for_steps(process)
    if told == "everybody":
        os.killpg(process.pid, signal.SIGINT)
    elif told == "launcher":
        process.send_signal(signal.SIGTERM)
    else:
        os.kill(children(process.pid)[-1], signal.SIGTERM)
    out, err = process.communicate(timeout=90)
    assert process.returncode != 0
    results = [json.loads(path.read_text()) for path in tmp_path.glob("run*/result.json")]
    assert [result["stage"] for result in results] == ["training"] * 2, err
    (state,) = (Path(result["checkpoint"]) for result in results if result.get("checkpoint"))
    assert torch.load(tmp_path / state, weights_only=True)["place"]["step"] >= 1
    assert f"task.resume={state.parent}" in out
