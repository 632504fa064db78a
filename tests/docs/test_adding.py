"""docs/adding.md is true: its files, written into a copy of the project, run by its commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("conf", "engine", "backends", "speculative", "kernels")
PAGE = (ROOT / "docs/adding.md").read_text()
FILES = re.findall(r"^`([\w/.]+)`\n\n```(?:python|yaml)\n(.*?)^```", PAGE, re.M | re.S)
COMMANDS = [
    line for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S) for line in block.splitlines()
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in FILES:
        assert not (folder / name).exists(), f"{name} exists already: the page must not overwrite a part"
        (folder / name).write_text(text)
    return folder


def _run(project: Path, command: str, *more: str) -> subprocess.CompletedProcess[str]:
    words = [*shlex.split(command), *more]
    assert words[:3] == ["python", "-m", "engine"]
    env = {**os.environ, "PYTHONPATH": str(project)}
    return subprocess.run(
        [sys.executable, *words[1:]],
        cwd=project,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_page_has_its_parts() -> None:
    assert [name for name, _ in FILES] == [
        "backends/window.py",
        "conf/attention/window.yaml",
        "speculative/repeat.py",
        "conf/spec/repeat.yaml",
        "engine/models/count.py",
        "conf/model/count.yaml",
    ]
    assert len(COMMANDS) == 4


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_runs(project: Path, command: str) -> None:
    done = _run(project, command)
    assert done.returncode == 0, done.stderr


def test_the_counting_model_counts(project: Path) -> None:
    done = _run(project, "python -m engine model=count prompt=abc sampling.max_tokens=6 task.raw=true")
    assert done.stdout.startswith("defghi")


def test_a_wide_window_is_plain_attention_and_a_narrow_one_is_not(project: Path) -> None:
    ids = {}
    for name, extra in (
        ("torch", "attention=torch"),
        ("wide", "attention=window attention.size=4096"),
        ("narrow", "attention=window attention.size=2"),
    ):
        line = (
            f"python -m engine model=tiny model.dtype=float32 sampling.max_tokens=24 task.format=json {extra}"
        )
        done = _run(project, line + ' prompt="The quick brown fox jumps over"')
        folder = Path(json.loads(done.stdout)["run"])
        first = json.loads((folder / "outputs.jsonl").read_text().splitlines()[0])
        ids[name] = first["completions"][0]["token_ids"]
    assert ids["wide"] == ids["torch"] != ids["narrow"]


def test_explain_knows_the_new_parts(project: Path) -> None:
    done = _run(project, "python -m engine task=explain attention=window spec=repeat task.format=json")
    told = json.loads(done.stdout)
    assert told["needs_cpu_seq_lens"] is False
    assert told["slots"][0]["backend"].endswith("WindowAttention")
    wide = _run(project, "python -m engine attention=window spec=repeat spec.drafts=99")
    assert wide.returncode == 1
    assert "spec.drafts=99" in wide.stderr
    assert "15" in wide.stderr
