"""Memory of this process or of its device: its peak, and what is left. Knows nothing of what uses it."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

_OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory", re.IGNORECASE)


def peak_memory_bytes(device: str) -> int:
    """Since the start: device memory on a GPU, resident memory of the process on the CPU."""
    torch = sys.modules.get("torch")
    if torch is not None and device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated(torch.device(device)))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def free_memory_bytes(device: str, root: Path = Path("/")) -> int | None:
    """What could be taken now; on the CPU the least of what the machine and the process's control group have
    left. None where nobody says. root: where proc and sys lie."""
    torch = sys.modules.get("torch")
    if torch is not None and device.startswith("cuda"):
        torch.cuda.empty_cache()  # what torch keeps for later is free, too
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    found = [_left_on_the_machine(root / "proc"), _left_of_the_group(root)]
    return min((value for value in found if value is not None), default=None)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is Python's or torch's way to say so; torch has an error of its own for a GPU only."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
    )


def _left_on_the_machine(proc: Path) -> int | None:
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _text(proc / "meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _left_of_the_group(root: Path) -> int | None:
    """Of cgroup v2. Pages of files count as used there, though they give way."""
    own = re.search(r"^0::/(.*)$", _text(root / "proc/self/cgroup"), re.MULTILINE)
    group = root / "sys/fs/cgroup" / (own[1] if own else "")
    limit, used = _text(group / "memory.max").strip(), _text(group / "memory.current").strip()
    if not (limit.isdigit() and used.isdigit()):  # "max": no limit
        return None
    files = re.search(r"^file (\d+)$", _text(group / "memory.stat"), re.MULTILINE)
    return max(0, int(limit) - int(used) + (int(files[1]) if files else 0))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
