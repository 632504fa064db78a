"""Which devices this machine seems to have, without torch: for rules and explain, which must answer at once.

What torch itself says decides when the engine is built; where nothing can be known, the answer is None.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DeviceFacts:
    """asked: the `device` value. kind: "cpu" or "cuda", what it comes to. index: N of cuda:N. gpus: visible
    NVIDIA GPUs, None when unknown. cuda_build: whether the installed torch can use one, None when unknown."""

    asked: str
    kind: str
    index: int
    gpus: int | None
    cuda_build: bool | None


def device_facts(asked: str) -> DeviceFacts:
    """What `device=asked` comes to here."""
    gpus, build = count_gpus(), torch_has_cuda()
    kind, _, index = asked.partition(":")
    if kind == "auto":
        kind = "cuda" if gpus and build else "cpu"
    return DeviceFacts(asked, kind, int(index or 0), gpus, build)


def count_gpus(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> int | None:
    """NVIDIA GPUs of the driver, less those that CUDA_VISIBLE_DEVICES hides. None: no way to tell."""
    nodes = len(list((root / "dev").glob("nvidia[0-9]*"))) if (root / "dev").is_dir() else 0
    if not nodes and (os.name == "nt" or (root / "dev/dxg").exists()):
        return None  # Windows, or Linux under it: the driver shows no device files
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return nodes
    chosen = [entry.strip() for entry in visible.split(",") if entry.strip()]
    cut = next((at for at, entry in enumerate(chosen) if entry.startswith("-")), len(chosen))
    return min(nodes, cut)


def gpu_name(index: int, root: Path = Path("/")) -> str | None:
    """The name of the driver's GPU of that number, as torch calls it. None: the driver does not say here."""
    found = []
    for place in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        lines = place.read_text(encoding="utf-8", errors="replace").splitlines()
        found += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return found[index] if index < len(found) else None


def torch_has_cuda() -> bool | None:
    """Whether the installed torch was built with CUDA: it ships a library of that name. None: no torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    libraries = Path(next(iter(spec.submodule_search_locations))) / "lib"
    return any(libraries.glob("*torch_cuda*"))
