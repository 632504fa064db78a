"""Finds a model of the hub in the local cache, or fetches it where the optional client is installed.

Knows the layout of that cache and which files a model needs, nothing of their content. Free of torch.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from engine.errors import UserError
from engine.models.source import Progress, silent

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_NEEDED = ["*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json"]
_TEXT = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template*"]


def is_hub_id(text: str) -> bool:
    """Whether `text` has the form owner/name."""
    return _ID.fullmatch(text) is not None


def cached_snapshot(repo: str) -> Path | None:
    """The folder of the newest snapshot in the local cache, whole or not; None when there is none."""
    home = hub_cache() / f"models--{repo.replace('/', '--')}"
    try:
        revision = (home / "refs" / "main").read_text().strip()
    except OSError:
        return None
    folder = home / "snapshots" / revision
    return folder if (folder / "config.json").is_file() else None


def fetch_snapshot(repo: str, progress: Progress = silent) -> Path:
    """Download what is missing of the model. Raises UserError without client, network or permission."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise UserError(
            f"model.path={repo} is not in the local cache, and fetching it needs huggingface_hub: "
            "pip install huggingface_hub, or give a local folder"
        ) from error
    progress(f"fetching {repo}", 0, 1)
    try:
        return Path(snapshot_download(repo, allow_patterns=[*_NEEDED, *_TEXT]))
    except Exception as error:  # the client raises its own, requests' and the system's errors
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"model.path={repo} could not be fetched ({first_line}); check the name and the network, "
            "or give a local folder"
        ) from error


def hub_cache() -> Path:
    """The folder in which the hub's client keeps what it has fetched."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    home = os.environ.get("HF_HOME") or Path(base) / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
