"""Folders and files of any name, in any place: copied, moved, inside a sweep, with the signs of grammars."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.model_folder import write_model

from engine.cli.main import main
from engine.runs import read_run
from engine.snapshot import Snapshot, recompose
from engine.tasks.base import EXIT_OK

NAMES = ["a b", "k=v,w", "50%@home", "it's ${x} {1}", "größe 日本", "-dash", "#1 [x] (y)", "~tilde & more"]
LOCAL = ("model=local", "model.dtype=float32", "sampling.max_tokens=4", "workload.limit=1", "task.raw=true")


@pytest.mark.parametrize("name", NAMES)
def test_any_path_goes_from_the_command_line_through_the_snapshot_and_back(
    run: Any, again: Any, tmp_path: Path, name: str
) -> None:
    """Field report H3."""
    model = write_model(tmp_path / "models" / name)
    prompts = tmp_path / "models" / f"{name}.txt"
    prompts.write_text("one\n")
    folder = run(
        *LOCAL, f"model.path={model}", "workload=file", f"workload.path={prompts}", base=("threads=1",)
    )
    config, overrides, _ = read_run(folder)
    assert (config["model"]["path"], config["workload"]["path"]) == (str(model), str(prompts))
    moved = tmp_path / "runs" / name
    moved.parent.mkdir()
    shutil.move(folder, moved)
    code, out, report = again(moved)
    assert (code, report["identical"], report["replay_of"]) == (EXIT_OK, True, str(moved))
    assert read_run(Path(out.splitlines()[-1]))[:2] == (config, overrides)


def test_relative_paths_mean_the_folder_of_the_run(run: Any, again: Any, tmp_path: Path) -> None:
    write_model(tmp_path / "home" / "model")
    folder = run(*LOCAL, "model.path=model", base=("threads=1",))
    code, out, _ = again(folder)
    assert code == EXIT_OK
    second = Path(out.splitlines()[-1])
    assert read_run(second)[0]["model"]["path"] == "model", "a replay asks for what the run asked for"
    assert again(second)[0] == EXIT_OK, "and is a run that can be replayed"
    write_model(tmp_path / "elsewhere" / "other", seed=1)
    assert recompose(Snapshot.read(folder), ["model.path=other"]).config["model"]["path"] == str(
        tmp_path / "elsewhere" / "other"
    ), "what is given now is relative to where it is given"


@pytest.mark.parametrize(
    "text", ["é\u2028\x85 日本 🌶", "tab\tand\\back", "a\nb", "{'x': [1]}", "null", "1e3"]
)
def test_any_prompt_comes_back(run: Any, again: Any, tmp_path: Path, text: str) -> None:
    folder = run(f"prompt={text}")
    assert again(folder)[0] == EXIT_OK
    assert read_run(folder)[0]["prompt"] == text


def test_a_chat_that_begins_with_a_prompt(run: Any, again: Any) -> None:
    folder = run("task=chat", "prompt=first", stdin="second\nthird\n")
    code, _, report = again(folder)
    assert (code, report["answers"], report["courses"][0]["parted"]) == (EXIT_OK, 3, None)


def test_a_job_of_a_sweep_is_a_run(again: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replayed where it lies and copied out; the sweep's folder stays as it was, byte for byte."""
    monkeypatch.chdir(tmp_path)
    cell = ["model=fake", "threads=1", "workload.limit=1", "sampling=creative", "sampling.max_tokens=3"]
    assert main(["-m", *cell]) == EXIT_OK
    (job,) = (path.parent for path in tmp_path.rglob("job.json"))
    before = _contents(tmp_path / "multirun")
    assert again(job)[0] == EXIT_OK
    assert _contents(tmp_path / "multirun") == before
    shutil.copytree(job, tmp_path / "one job")
    shutil.rmtree(tmp_path / "multirun")
    code, _, report = again(tmp_path / "one job")
    assert (code, report["identical"], report["courses"][0]["parted"]) == (EXIT_OK, True, None)


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_is_plain_data_for_another_process(run: Any, tmp_path: Path) -> None:
    """Field report I7: what crosses processes is the folder alone; the other one builds its own engine."""
    folder = run("workload.limit=2", "sampling=creative")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-m", "engine.replay", str(folder), "task.format=json"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    document = json.loads(done.stdout)
    assert (done.returncode, document["identical"], document["courses"][0]["parted"]) == (EXIT_OK, True, None)
