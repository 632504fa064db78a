"""Programs in the sandbox: what passes, what does not, and what they cannot do."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from engine.evals import sandbox
from engine.evals.sandbox import Limits, namespaces, run_program

QUICK = Limits(seconds=5.0, megabytes=256)


@pytest.mark.parametrize(
    "program", ["", "x = 1", "print('a' * 10**5)", "import math\nassert math.sqrt(4) == 2"]
)
def test_a_program_that_comes_to_its_end_passes(program: str) -> None:
    ended = run_program(program, QUICK)
    assert ended.passed, ended.reason


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("assert 1 == 2", "AssertionError"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("import os; os._exit(0)", "ended by itself"),
        (
            "import os, json; os.write(3, json.dumps({'nonce': 'x', 'error': None}).encode()); os._exit(0)",
            "els",
        ),
        ("x = bytearray(10**10)", "MemoryError"),
        ("open('a', 'w').write('x' * 10**7)", "too large"),
        ("import ctypes; ctypes.string_at(0)", "ended by itself"),
        ("def f(): f()\nf()", "RecursionError"),
        ("input()", "EOFError"),
    ],
)
def test_whatever_else_happens_fails_with_its_reason(program: str, reason: str) -> None:
    ended = run_program(program, QUICK)
    assert not ended.passed
    assert reason in str(ended.reason)


@pytest.mark.parametrize("program", ["while True: pass", "import time\ntime.sleep(60)"])
def test_time_is_limited(program: str) -> None:
    start = time.monotonic()
    ended = run_program(program, Limits(seconds=0.5))
    assert ended.reason == "ran longer than 0.5 s"
    assert time.monotonic() - start < 20


def test_the_folder_is_its_own_and_goes_away(tmp_path: Path) -> None:
    mark = tmp_path / "where"
    mark.touch()
    program = (
        "import os\nassert os.listdir() == []\nopen('a', 'w').write('b')\n"
        f"open({str(mark)!r}, 'w').write(os.getcwd())"
    )
    assert run_program(program, QUICK).passed
    folder = Path(mark.read_text())
    assert folder != Path.cwd()
    assert not folder.exists()


def test_secrets_of_the_environment_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "s3cret")
    assert run_program("import os\nassert 'SOME_TOKEN' not in os.environ", QUICK).passed


def test_no_other_package_is_in_reach() -> None:
    assert "ModuleNotFoundError" in str(run_program("import torch", QUICK).reason)


@pytest.mark.skipif(not namespaces(), reason="unshare is not allowed here")
def test_the_network_is_cut_off_where_the_system_lets_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        program = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)"
        socket.create_connection(("127.0.0.1", port), 2).close()
        assert not run_program(program, QUICK).passed


@pytest.mark.skipif(not namespaces(), reason="unshare is not allowed here")
def test_nothing_of_a_program_survives_it(tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    program = (
        "import os, time\n"
        f"if os.fork() == 0:\n    os.setsid()\n    time.sleep(1.5)\n    open({str(mark)!r}, 'w').write('x')\n"
        "time.sleep(60)"
    )
    run_program(program, Limits(seconds=0.5))
    time.sleep(2.0)
    assert not mark.exists()


def test_without_unshare_it_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "namespaces", tuple)
    assert run_program("x = 1", QUICK).passed
    assert not run_program("x = y", QUICK).passed


def test_an_unshare_that_fails_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "unshare"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    namespaces.cache_clear()
    try:
        assert namespaces() == ()
    finally:
        namespaces.cache_clear()
