"""Where a run came from: versions, code, machine and configuration. Knows nothing of what the run did.

Free of torch: what only a built engine can tell is added later (engine/replay/facts.py).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from engine import __version__
from engine.code_state import PACKAGE_ROOT, code_files, code_hash, git_state

PACKAGES = (
    "torch",
    "triton",
    "tokenizers",
    "safetensors",
    "gguf",
    "numpy",
    "jinja2",
    "hydra-core",
    "omegaconf",
)
VARIABLES = (  # of the environment: they change which arithmetic is done, or where
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "DNNL_MAX_CPU_ISA",
    "KMP_AFFINITY",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
_DISTRIBUTION = re.compile(r"(.+)-([^-]+)\.dist-info")


def provenance(config: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """What is known before anything is built; the engine adds device, seed and model files later."""
    return {
        "started": datetime.now().astimezone().isoformat(timespec="milliseconds"),
        "overrides": list(overrides),
        "config_hash": config_hash(config),
        "seed": config.get("seed"),
        "cwd": os.getcwd(),
        "git": git_state(PACKAGE_ROOT),
        "code": {"sha256": code_hash(code_files())},
        "versions": versions(),
        "machine": machine(),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def config_hash(config: Mapping[str, Any]) -> str:
    """SHA-256 of the resolved config in canonical JSON: key order does not matter, types do."""
    text = json.dumps(config, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def versions() -> dict[str, str | None]:
    """Python's and the run-time packages' versions; null: not installed."""
    ours = {"syncless": __version__, "python": platform.python_version()}
    return {**ours, **{name: _version(name) for name in PACKAGES}}


def machine() -> dict[str, Any]:
    """The host: operating system, processor and the cores this process may use."""
    return {
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "driver": driver(),
    }


def packages() -> dict[str, str]:
    """Every installed distribution with its version. From the names of the folders that say so: reading all
    of them with importlib.metadata takes a tenth of a second."""
    found: dict[str, str] = {}
    for place in map(Path, sys.path):
        entries = sorted(os.listdir(place)) if place.is_dir() else []
        for match in filter(None, map(_DISTRIBUTION.fullmatch, entries)):
            found.setdefault(match[1].lower().replace("_", "-"), match[2])
    return dict(sorted(found.items()))


def driver(root: Path = Path("/")) -> str | None:
    """The version of NVIDIA's kernel driver; None where there is none, or no way to tell."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"\b(\d+\.\d+(?:\.\d+)*)\b", text)
    return found[1] if found else None


def cpu_name() -> str:
    """The processor's marketing name where the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def device_facts(device: str) -> dict[str, Any]:
    """The device of a built engine. Asks torch only if it is loaded: then a GPU's name is known."""
    torch = sys.modules.get("torch")
    name = cpu_name()
    if torch is not None and device.startswith("cuda"):
        name = torch.cuda.get_device_name(torch.device(device))
    return {"device": device, "device_name": name}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
