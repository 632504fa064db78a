"""Runs a program that a model wrote, in a process with limits, and says whether it came to its end.

Limits damage, and is no prison: the program reads what its user may read. Where Linux lets it (`unshare`), it
has no network and no view of other processes. Importable without torch; knows no data set.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

GUARD = Path(__file__).with_name("guard.py")
APART = ("--user", "--map-root-user", "--net", "--ipc", "--pid", "--fork", "--kill-child")


@dataclass(frozen=True)
class Limits:
    """seconds: wall clock, and processor time rounded up. megabytes: address space."""

    seconds: float = 10.0
    megabytes: int = 1024


@dataclass(frozen=True)
class Ended:
    """How a program ended. reason: what stopped it; None: it came to its end."""

    reason: str | None

    @property
    def passed(self) -> bool:
        return self.reason is None


def run_program(program: str, limits: Limits) -> Ended:
    """Run the text of a program with the standard library, in an empty folder that is removed afterwards."""
    nonce = secrets.token_hex(16)
    job = {
        "nonce": nonce,
        "program": program,
        "megabytes": limits.megabytes,
        "seconds": math.ceil(limits.seconds),
    }
    with tempfile.TemporaryDirectory(prefix="syncless-check-") as folder:
        child = subprocess.Popen(
            [*namespaces(), sys.executable, "-I", "-S", str(GUARD)],
            cwd=folder,
            env={"HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # one group, so that nothing of it survives
        )
        try:
            said, _ = child.communicate(json.dumps(job).encode(), timeout=limits.seconds)
        except subprocess.TimeoutExpired:
            return Ended(f"ran longer than {limits.seconds:g} s")
        finally:
            _end(child)
    return _judged(said, nonce, child.returncode)


@cache
def namespaces() -> tuple[str, ...]:
    """The command that cuts a process off from network and other processes; empty where it is not allowed."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return ()
    command = (unshare, *APART)
    try:
        tried = subprocess.run(
            [*command, sys.executable, "-I", "-S", "-c", ""], capture_output=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return command if tried.returncode == 0 else ()


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


def _judged(said: bytes, nonce: str, code: int) -> Ended:
    try:
        report = json.loads(said)
    except ValueError:
        return Ended(f"the process ended by itself or was stopped (exit code {code})")
    if not isinstance(report, dict) or report.get("nonce") != nonce:
        return Ended("the process reported something else than its end")
    return Ended(report.get("error"))
