"""Whether the jobs of a sweep ran on the code that would go on with it. Reads run.json, runs nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from engine.code_state import code_files, code_hash
from engine.runs import RUN


def of_other_code(jobs: Iterable[Path]) -> list[Path]:
    """The job folders whose run was made by other files of this package than today's."""
    now = code_hash(code_files())
    return [job for job in jobs if _hash_in(job / RUN) not in (None, now)]


def _hash_in(path: Path) -> str | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["code"]["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # no run was made here, or one of a version that kept no hash
    return str(found)
