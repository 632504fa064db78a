"""One job as a process of its own: started, watched, stopped. Knows command lines and time, no config.

The process leads its own group and holds one end of a pipe (its leash): however its supervisor dies, the pipe
closes, and the whole group ends instead of keeping a device busy.
"""

from __future__ import annotations

import os
import signal
import site
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from engine.code_state import PACKAGE_ROOT
from engine.sweeps.outcome import Ending, memory_kills
from engine.tasks.base import EXIT_INTERRUPTED

POLL_SECONDS = 0.05
GRACE_SECONDS = 10.0  # between asking a job to stop and killing it
CALM, STOP, FORCE = 0, 1, 2  # how urgently a job is asked to end


def run_process(
    directory: Path,
    log: IO[bytes],
    overrides: Sequence[str],
    cwd: str,
    limit: float | None,
    urgency: Callable[[], int],
) -> Ending:
    """Run `python -m engine` with the overrides in a new process, its run folder `directory`.

    limit: seconds. urgency: asked again and again. Never leaves the process behind, whatever is raised here.
    """
    before = memory_kills()
    reader, writer = os.pipe()
    command = [sys.executable, "-P", "-u", "-m", "engine", "--job", str(directory), "--leash", str(reader)]
    process = subprocess.Popen(
        [*command, *overrides],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": python_path()},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        pass_fds=(reader,),
        start_new_session=True,
    )
    os.close(reader)
    try:
        stopped, late = _watch(process, limit, urgency)
    finally:
        _kill_group(process)
        code = process.wait()
        os.close(writer)
    if code == EXIT_INTERRUPTED and urgency() != CALM:  # a scheduler has told the job, too, and it was faster
        stopped = not late
    return Ending(code, stopped, late, limit, memory_kills() - before)


def hold_leash(descriptor: int) -> None:
    """In the job: end this process's whole group as soon as nobody holds the other end of the pipe.

    SIGINT ends it too: a sweep that was started in the background has it ignored, and its jobs inherit that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def wait() -> None:
        while os.read(descriptor, 1):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, name="leash", daemon=True).start()


def _watch(
    process: subprocess.Popen[bytes], limit: float | None, urgency: Callable[[], int]
) -> tuple[bool, bool]:
    """Until it ends: (asked to stop, asked for lateness). SIGINT lets a task save what it has."""
    start = time.monotonic()
    asked: float | None = None
    late = False
    while not _ended(process):
        now, wish = time.monotonic(), urgency()
        overdue = limit is not None and now - start > limit
        if wish == FORCE or (asked is not None and now - asked > GRACE_SECONDS):
            _kill_group(process)
        elif asked is None and (wish == STOP or overdue):
            asked, late = now, overdue and wish != STOP
            process.send_signal(signal.SIGINT)
        time.sleep(POLL_SECONDS)
    return (asked is not None or urgency() == FORCE) and not late, late


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Without taking its exit code: as long as that is there to be had, its number is nobody else's."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """The job and whatever it has started; nothing where all of them have ended."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def python_path() -> str:
    """PYTHONPATH for processes that import this project wherever they are started.

    -P keeps a stranger's engine.py in the working directory out; so a checkout has to be named."""
    given = os.environ.get("PYTHONPATH", "")
    if str(PACKAGE_ROOT) in site.getsitepackages():
        return given
    return os.pathsep.join([str(PACKAGE_ROOT), *([given] if given else [])])
