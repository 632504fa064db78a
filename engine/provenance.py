"""Where a run came from: versions, code, machine and configuration. Knows nothing of what the run did."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from engine import __version__

PACKAGE_ROOT = Path(__file__).resolve().parents[1]
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


def provenance(config: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """What is known before anything is built; the engine adds device, seed and model files later."""
    return {
        "started": datetime.now().astimezone().isoformat(timespec="milliseconds"),
        "overrides": list(overrides),
        "config_hash": config_hash(config),
        "seed": config.get("seed"),
        "cwd": os.getcwd(),
        "git": git_state(PACKAGE_ROOT),
        "versions": versions(),
        "machine": machine(),
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
    }


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


def git_state(root: Path) -> dict[str, Any] | None:
    """Commit and dirty flag of the checkout whose top is `root`; None where `root` is no checkout (a wheel).

    The package's own checkout, never the working directory's: a wheel installed inside somebody's repository
    must not be given that repository's commit.
    """
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root or not (root / "pyproject.toml").is_file():
        return None
    commit = _git(root, "rev-parse", "HEAD")
    status = _git(root, "status", "--porcelain")
    return None if commit is None else {"commit": commit, "dirty": bool(status)}


def _git(root: Path, *arguments: str) -> str | None:
    hidden = {
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
    }  # set inside a git hook: they name another repository
    clean = {key: value for key, value in os.environ.items() if key not in hidden}
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, env=clean, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
