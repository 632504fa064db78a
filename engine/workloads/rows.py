"""Reads prompt files and says which line of them is wrong. Knows the formats and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.errors import UserError
from engine.workloads.base import WorkItem

KEYS = ("prompt", "messages", "turns", "question", "ids")


def read_rows(path: Path) -> list[WorkItem]:
    """Items of a JSONL file. UserError names the first bad line; blank lines are skipped."""
    items = []
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            items.append(_parse_line(line, f"{path}, line {number}"))
    return _not_empty(items, path)


def read_text(path: Path) -> list[WorkItem]:
    """One prompt a line; blank lines are skipped."""
    lines = [line.removesuffix("\r") for line in _text(path).split("\n")]
    return _not_empty([WorkItem(prompt=line) for line in lines if line.strip()], path)


def parse_row(row: Any, where: str) -> WorkItem:
    """One JSON object as an item; `where` opens the error message. Keys other than ours are ignored."""
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected a JSON object, found {type(row).__name__}")
    key = next((name for name in KEYS if name in row), None)
    if key is None:
        found = ", ".join(list(row)[:6]) or "nothing"
        raise UserError(f"{where}: needs one of the keys {', '.join(KEYS[:-1])}; it has {found}")
    return _PARSERS[key](row[key], f"{where}: {key}")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}): convert the file first") from error
    except OSError as error:
        raise UserError(f"cannot read workload.path={path}: {error.strerror or error}") from error


def _parse_line(line: str, where: str) -> WorkItem:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # the latter: nested too deeply
        raise UserError(f"{where}: not JSON ({error})") from error
    return parse_row(row, where)


def _not_empty(items: list[WorkItem], path: Path) -> list[WorkItem]:
    if not items:
        raise UserError(f"workload.path={path} holds no prompts")
    return items


def _prompt(value: Any, where: str) -> WorkItem:
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where} has to be text that is not empty")
    return WorkItem(prompt=value)


def _messages(value: Any, where: str) -> WorkItem:
    if not isinstance(value, list) or not value:
        raise UserError(f"{where} has to be a list of {{role, content}} objects that is not empty")
    for message in value:
        keys = message if isinstance(message, dict) else {}
        if not isinstance(keys.get("role"), str) or not isinstance(keys.get("content"), str):
            raise UserError(f"{where}: every message needs a role and a content, both text")
    return WorkItem(messages=tuple({"role": m["role"], "content": m["content"]} for m in value))


def _turns(value: Any, where: str) -> WorkItem:
    if not isinstance(value, list) or not value or not all(isinstance(v, str) and v.strip() for v in value):
        raise UserError(f"{where} has to be a list of user texts that are not empty")
    return WorkItem(prompt=value[0]) if len(value) == 1 else WorkItem(turns=tuple(value))


def _ids(value: Any, where: str) -> WorkItem:
    whole = isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)
    if not whole or not value:
        raise UserError(f"{where} has to be a list of token ids that is not empty")
    return WorkItem(ids=tuple(value))


_PARSERS = {"prompt": _prompt, "question": _prompt, "messages": _messages, "turns": _turns, "ids": _ids}
