"""Several processes train one draft: their environment, their shares, and torchrun itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from training_task import BASE, SMALL, prompts

from engine.code_state import PACKAGE_ROOT
from engine.errors import UserError
from engine.tasks.training_world import TrainingWorld


@pytest.mark.parametrize("environment", [{"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "a"}])
def test_a_broken_torchrun_environment_is_named(environment: dict[str, str]) -> None:
    with pytest.raises(UserError, match="RANK"):
        TrainingWorld.of(environment)


def test_shares_of_all_processes_are_the_whole() -> None:
    worlds = [TrainingWorld.of({"RANK": str(r), "WORLD_SIZE": "3", "LOCAL_RANK": str(r)}) for r in range(3)]
    assert sorted(i for world in worlds for i in world.share(range(10))) == list(range(10))
    assert TrainingWorld.of({}).share([1, 2]) == [1, 2]


def test_torchrun_trains_one_draft_with_two_processes(tmp_path: Path) -> None:
    learn = prompts(tmp_path, "learn", "hello", "what is this", "one two three", "go on", "and on")
    lines = ["task=train_eagle3", *BASE, *SMALL[:-1], "task.trainer.epochs=3", f"task.prompts=[{learn}]"]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "engine",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PACKAGE_ROOT)}
    done = subprocess.run(
        [*command, *lines, f"hydra.run.dir={tmp_path}/run"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    results = [json.loads(path.read_text()) for path in tmp_path.glob("run*/result.json")]
    assert sorted("draft" in result for result in results) == [False, True]
    (first,) = (result for result in results if "draft" in result)
    assert first["text"]["sequences"] == 5, "the text of both processes"
