"""From how a process ended and what it wrote last to a state and one sentence. Starts no process."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path

from engine.sweeps.states import FAILED, FINISHED, INTERRUPTED, KILLED, OUT_OF_MEMORY, TIMEOUT
from engine.tasks.base import EXIT_INTERRUPTED

TAIL_BYTES = 65536
SWEEP_INTERRUPTED = "the sweep was interrupted"
_MEMORY = re.compile(r"OutOfMemoryError|MemoryError|out of memory|can't allocate memory|not enough memory")
_RAISED = re.compile(r"[\w.]*(?:Error|Exception|Interrupt|Exit|Failure)\b.*")
_LONGEST = 400


@dataclass(frozen=True)
class Ending:
    """exit_code: as subprocess reports it, negative for a signal. stopped: by us, on somebody's wish. late:
    by us, after `limit` seconds. memory_kills: processes that the kernel killed for memory meanwhile."""

    exit_code: int
    stopped: bool = False
    late: bool = False
    limit: float | None = None
    memory_kills: int = 0


def verdict(ending: Ending, log: Path) -> tuple[str, str | None]:
    """(state, reason; null for a finished job)."""
    if ending.late:
        return TIMEOUT, f"stopped after {ending.limit:g} seconds (sweep.timeout={ending.limit:g})"
    if ending.exit_code == 0:
        return FINISHED, None
    if ending.stopped:
        return INTERRUPTED, SWEEP_INTERRUPTED
    if ending.exit_code < 0:
        return _of_signal(-ending.exit_code, ending.memory_kills, log)
    if ending.exit_code == EXIT_INTERRUPTED:
        return KILLED, "stopped by a signal (SIGINT or SIGTERM) that the sweep did not send"
    said = last_words(log)
    if said is not None and _MEMORY.search(said):
        return OUT_OF_MEMORY, said
    return FAILED, said or f"it ended with exit code {ending.exit_code} and said nothing"


def last_words(log: Path) -> str | None:
    """The error that a log ends with: our own message or the last line of a traceback; else its last line."""
    lines = [line.rstrip() for line in _tail(log).splitlines() if line.strip()]
    if not lines:
        return None
    for at in range(len(lines) - 1, -1, -1):
        if lines[at].startswith("error: "):
            problems = [line.strip(" -") for line in lines[at + 1 :] if line.startswith("  - ")]
            return _short("; ".join(problems) or lines[at].removeprefix("error: "))
        if _RAISED.fullmatch(lines[at]):
            return _short(lines[at])
    return _short(lines[-1])


def memory_kills(counters: Path = Path("/proc/vmstat")) -> int:
    """Processes that this machine's kernel has killed for memory since its start; 0 where it does not say."""
    try:
        words = counters.read_text(encoding="ascii").split()
    except OSError:
        return 0
    return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0


def _of_signal(number: int, kills: int, log: Path) -> tuple[str, str]:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if number == signal.SIGKILL and kills:
        return OUT_OF_MEMORY, "the kernel killed it for want of memory (SIGKILL)"
    if number == signal.SIGABRT and _MEMORY.search(_tail(log)):
        return OUT_OF_MEMORY, f"it ran out of memory and aborted ({name})"
    return KILLED, f"killed by {name}"


def _tail(log: Path) -> str:
    try:
        with open(log, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
