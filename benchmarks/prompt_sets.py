"""Prompt sets for benchmarks of drafts: evaluation questions where they lie, else the package's own prompts.

Knows files and their fields, no engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.workloads.base import Workload
from engine.workloads.builtin import BuiltinPrompts

BUILT_IN = "built-in"
FILES = {  # set -> (file, field of the user's first message)
    "alpaca": ("alpaca/question.jsonl", "turns"),
    "gsm8k": ("gsm8k/test.jsonl", "question"),
    "humaneval": ("humaneval/humaneval.jsonl", "prompt"),
    "summarise": ("summarise/question.jsonl", "turns"),
}
NEAR = (Path("../shared/data"), Path("data"))  # looked for when nobody names a folder


@dataclass(frozen=True)
class PromptSet:
    """texts: the user's message of each conversation."""

    name: str
    texts: tuple[str, ...]


def prompt_sets(folder: Path | None, limit: int) -> list[PromptSet]:
    """The sets of `folder`, or of the first of NEAR that has any; the package's own prompts if none has."""
    for place in NEAR if folder is None else (folder,):
        found = [
            PromptSet(name, _texts(place / file, field, limit))
            for name, (file, field) in FILES.items()
            if (place / file).is_file()
        ]
        if found:
            return found
    if folder is not None:
        raise SystemExit(f"{folder} holds none of {', '.join(file for file, _ in FILES.values())}")
    items = BuiltinPrompts(Workload.Config(limit=limit)).items(0)
    return [PromptSet(BUILT_IN, tuple(item.prompt or item.title() for item in items))]


def _texts(file: Path, field: str, limit: int) -> tuple[str, ...]:
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    return tuple(_text(row, field) for row in rows[:limit])


def _text(row: Mapping[str, Any], field: str) -> str:
    value = row[field]
    return str(value[0] if isinstance(value, list) else value)
