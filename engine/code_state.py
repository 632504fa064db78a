"""Which code is running: a hash of every file of the package, and what a checkout holds beyond its commit.

Works the same in a checkout and in a wheel. Knows files; nothing of runs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE_ROOT = Path(__file__).resolve().parents[1]
CODE = ("engine", "backends", "speculative", "kernels", "conf")
KINDS = (".py", ".yaml", ".jsonl", ".json")  # weights that ship with the package are named with the model's
DIFF_LIMIT = 8 << 20  # bytes of a difference that a run folder keeps
_FOREIGN = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
)  # set inside a git hook, they name another repository


@cache
def code_files(root: Path = PACKAGE_ROOT) -> Mapping[str, str]:
    """Relative path -> SHA-256, cut to 16 digits, of every file of the package; read once a process."""
    found = {}
    for name in CODE:
        for path in sorted((root / name).rglob("*")):
            if path.suffix in KINDS and path.is_file():
                digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
                found[path.relative_to(root).as_posix()] = digest
    return found


def code_hash(files: Mapping[str, str]) -> str:
    """One SHA-256 for all files, names included."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def git_state(root: Path) -> dict[str, Any] | None:
    """Commit and dirty flag of the checkout whose top is `root`; None where `root` is no checkout (a wheel).

    The package's own checkout, never the working directory's: a wheel installed inside somebody's repository
    must not be given that repository's commit.
    """
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top.strip()).resolve() != root or not (root / "pyproject.toml").is_file():
        return None
    commit = _git(root, "rev-parse", "HEAD")
    status = _git(root, "status", "--porcelain")
    return None if commit is None else {"commit": commit.strip(), "dirty": bool(status)}


def code_diff(root: Path) -> str:
    """What the code in a checkout differs by from its commit, new files included, as `git apply` takes it.

    Empty where it does not differ, or where `root` is no checkout.
    """
    index = _git(root, "rev-parse", "--git-path", "index")
    kept = [name for name in (*CODE, "pyproject.toml") if (root / name).exists()]
    if index is None or not kept:
        return ""
    with tempfile.TemporaryDirectory(prefix="syncless-") as scratch:
        own = Path(scratch) / "index"  # the checkout's own index stays as it is
        if (root / index.strip()).is_file():
            shutil.copy(root / index.strip(), own)
        _git(root, "add", "--intent-to-add", "--", *kept, index=own)
        found = _git(root, "diff", "--binary", "--no-color", "--no-ext-diff", "HEAD", "--", *kept, index=own)
    return found or ""


def _git(root: Path, *arguments: str, index: Path | None = None) -> str | None:
    clean = {key: value for key, value in os.environ.items() if key not in _FOREIGN}
    if index is not None:
        clean["GIT_INDEX_FILE"] = str(index)
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=20, env=clean, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "surrogateescape")
