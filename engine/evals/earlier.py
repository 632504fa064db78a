"""What an earlier run of task=eval answered, read from its folder; and which of two settings `against` names.

Importable without torch. Knows run folders and nothing of how answers are marked.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UserError
from engine.runs import OUTPUTS, read_lines, read_run

Row = Mapping[str, Any]
QUESTION_ID = "question_id"


def question_id(row: Row) -> str:
    """The name of a question by its content: the same in every run and file that holds it."""
    text = json.dumps(dict(row), sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class EarlierRun:
    """rows: the finished answers by question id. facts: run.json."""

    path: Path
    config: Mapping[str, Any]
    facts: Mapping[str, Any]
    rows: Mapping[str, Row]

    @classmethod
    def read(cls, directory: str, setting: str) -> EarlierRun:
        """UserError for a folder that is not a run of task=eval, or that holds no answer."""
        folder = Path(directory).expanduser()
        try:
            config, _, facts = read_run(folder)
        except UserError as error:
            raise UserError(f"{setting}={directory}: {error}") from error
        file = folder / OUTPUTS
        rows = read_lines(file) if file.is_file() else []
        marked = {row[QUESTION_ID]: row for row in rows if _is_answer(row)}
        if not marked:
            raise UserError(
                f"{setting}={directory} holds no marked answers: name the folder of a run of task=eval"
            )
        return cls(folder.resolve(), config, facts, marked)


def is_overrides(text: str) -> bool:
    """Whether the text is a list of overrides, such as "spec=none overlap=none"; a folder goes first."""
    return not Path(text).expanduser().is_dir() and all("=" in part for part in overrides_of(text))


def overrides_of(text: str) -> list[str]:
    """The overrides, split at spaces that are not in quotes. UserError where a quote is not closed."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"eval.against={text} cannot be read: {error}") from error


def check_against(text: str) -> None:
    """UserError for what is neither an earlier run nor overrides, and for overrides that ask other things."""
    if is_overrides(text):
        other = [part for part in overrides_of(text) if part.partition("=")[0] in ("eval", "task")]
        if other:
            raise UserError(
                f"eval.against={text}: both sides answer the same questions, so leave out {other[0]}"
            )
        return
    if not Path(text).expanduser().is_dir():
        raise UserError(
            f"eval.against={text} is neither a run folder nor overrides: give the folder of a run of "
            'task=eval, or settings such as eval.against="spec=none overlap=none"'
        )
    EarlierRun.read(text, "eval.against")


def _is_answer(row: Row) -> bool:
    """A row of the run itself (not of what it was compared with) that came to its end."""
    finish = row.get("completions", [{}])[0].get("finish_reason")
    return "path" not in row and QUESTION_ID in row and finish not in (None, "cancelled")
