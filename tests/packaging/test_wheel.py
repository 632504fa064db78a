"""A wheel holds conf/ and runs from any folder, whatever else lies there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from engine import __version__

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("engine", "backends", "speculative", "kernels")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of the checkout, so that nothing is left in it, and nobody edits it meanwhile."""
    source = tmp_path_factory.mktemp("source")
    for name in (*PACKAGES, "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source / name)
    return source


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> Path:
    """Needs no network."""
    out = tmp_path_factory.mktemp("wheel")
    build = ["wheel", "--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(out), str(source)]
    done = subprocess.run([sys.executable, "-m", "pip", *build], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The wheel in a folder of its own; dependencies come from the running environment."""
    folder = tmp_path_factory.mktemp("site")
    install = ["install", "--no-deps", "--no-index", "--quiet", "--target", str(folder), str(wheel)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *install], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def strangers(tmp_path) -> Path:
    """A working directory with files that have our names."""
    (tmp_path / "engine.py").write_text("raise SystemExit('the stranger ran')\n")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("stranger: true\n")
    return tmp_path


def run(command: list[str], site: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel):
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = [path for name in (*PACKAGES, "conf") for path in (ROOT / name).rglob("*") if path.is_file()]
    ours = {path.relative_to(ROOT).as_posix() for path in files if path.parent.name != "__pycache__"}
    assert held == ours


def test_metadata_has_version_script_and_pins(wheel):
    with zipfile.ZipFile(wheel) as archive:
        texts = {
            Path(name).name: archive.read(name).decode() for name in archive.namelist() if "dist-info" in name
        }
    assert "syncless = engine.cli:main" in texts["entry_points.txt"]
    assert f"Version: {__version__}" in texts["METADATA"]
    for pin in ("torch<=2.13.0,>=2.11", "hydra-core<1.4,>=1.3.8", "omegaconf<2.4,>=2.3", "triton<3.8,>=3.6"):
        assert f"Requires-Dist: {pin}" in texts["METADATA"]


def test_console_script_runs_beside_a_strangers_engine(installed, strangers):
    script = installed / "bin" / "syncless"
    shown = run([sys.executable, str(script), "--version"], installed, strangers)
    assert shown.stdout == f"syncless {__version__}\n"
    arguments = ["model=tiny", "device=cpu", "prompt=hi", "sampling.max_tokens=2"]
    ran = run([sys.executable, str(script), *arguments], installed, strangers)
    assert ran.returncode == 0, ran.stderr
    folder = Path(ran.stdout.splitlines()[-1])
    assert folder.is_relative_to(strangers), "runs are left where the user is"
    assert (folder / "result.json").is_file()


def test_module_runs_from_any_folder_and_reads_its_own_conf(installed, tmp_path):
    shown = run([sys.executable, "-m", "engine", "--info", "searchpath"], installed, tmp_path)
    assert f"file://{installed}/conf" in shown.stdout
    assert str(ROOT) not in shown.stdout


def test_a_copied_run_of_the_sources_is_repeated_by_the_wheel(source, installed, tmp_path):
    """From the folder alone, elsewhere: identical ids, the same batches, the same code by its hash."""
    first, copied, elsewhere = (tmp_path / name for name in ("first", "copied", "elsewhere"))
    elsewhere.mkdir()
    arguments = ["model=tiny", "device=cpu", "sampling=creative", "sampling.max_tokens=8", "arrivals=poisson"]
    made = run(
        [sys.executable, "-m", "engine", *arguments, "arrivals.rate=200", f"hydra.run.dir={first}"],
        source,
        tmp_path,
    )
    assert made.returncode == 0, made.stderr
    shutil.copytree(first, copied)
    shutil.rmtree(first)
    done = run([sys.executable, "-m", "engine.replay", str(copied), "task.format=json"], installed, elsewhere)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["identical"], document["courses"][0]["parted"]) == (True, None)
    assert document["answers"] >= 8
    assert not [name for name in document["changed"] if not name.startswith("packages.")]
    assert json.loads((Path(document["run"]) / "run.json").read_text())["git"] is None
