"""What a run's code, libraries and machine were, in words. Knows run.json, and no figure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from engine.report.figures import at
from engine.report.rows import Sweep

EXPLAINS = ("machine", "versions", "environment", "arithmetic", "model_files", "draft_files")
HASH = 10  # letters of a hash


def provenance(sweep: Sweep) -> dict[str, str]:
    """Code, versions and machine of a sweep's runs; several values are listed where its runs differ."""
    found: dict[str, dict[str, None]] = {}
    for row in sweep.rows:
        for name, value in stack(row.facts):
            found.setdefault(name, {})[value] = None
    return {name: ", ".join(values) for name, values in found.items()}


def stack(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(name, value) of what may explain a difference; hashes are cut."""
    commit, code = at(facts, "git.commit"), at(facts, "code.sha256")
    if commit is not None:
        yield "commit", str(commit)[:HASH] + (" with changes" if at(facts, "git.dirty") else "")
    if code is not None:
        yield "code", str(code)[:HASH]
    if facts.get("device_name"):
        yield "machine", str(facts["device_name"])
    for group in EXPLAINS:
        node = facts.get(group)
        for name, value in node.items() if isinstance(node, Mapping) else ():
            if value is not None:
                text = str(value)
                yield f"{group}: {name}", text[:HASH] if re.fullmatch("[0-9a-f]{40,}", text) else text
