"""Peak memory of this process or of its device. Knows nothing of what uses it."""

from __future__ import annotations

import resource
import sys


def peak_memory_bytes(device: str) -> int:
    """Since the start: device memory on a GPU, resident memory of the process on the CPU."""
    torch = sys.modules.get("torch")
    if torch is not None and device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated(torch.device(device)))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
