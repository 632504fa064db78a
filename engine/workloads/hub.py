"""Files of data sets on the hub: in the local cache, or fetched where the optional client is installed.

Knows the layout of that cache and nothing of what a file holds. Importable without torch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from engine.errors import UserError
from engine.models.hub import hub_cache


def dataset_file(repo: str, patterns: Sequence[str], setting: str, *, download: bool) -> Path | None:
    """The first file of the data set that a pattern fits; None: it is not here and may not be downloaded.

    Raises UserError where a download fails or the data set has no such file.
    """
    found = _matching(_cached(repo), patterns)
    if found is not None or not download:
        return found
    found = _matching(_fetched(repo, patterns, setting), patterns)
    if found is None:
        raise UserError(
            f"{setting}={repo}: that data set has no file {' or '.join(patterns)}; give a local file"
        )
    return found


def check_client(repo: str, setting: str) -> None:
    """UserError where fetching `repo` could only fail."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise UserError(
            f"{setting}={repo} is neither a file nor in the local cache of the hub, and fetching it needs "
            "huggingface_hub: pip install huggingface_hub, or give a local file"
        )


def _cached(repo: str) -> Path | None:
    home = hub_cache() / f"datasets--{repo.replace('/', '--')}"
    try:
        revision = (home / "refs" / "main").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return home / "snapshots" / revision


def _fetched(repo: str, patterns: Sequence[str], setting: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo, repo_type="dataset", allow_patterns=list(patterns)))
    except Exception as error:  # the client raises its own, its transport's and the system's errors
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{setting}={repo} could not be fetched ({first_line}); check the name and the network, "
            "or give a local file"
        ) from error


def _matching(folder: Path | None, patterns: Sequence[str]) -> Path | None:
    if folder is None:
        return None
    return next((file for pattern in patterns for file in sorted(folder.glob(pattern))), None)
