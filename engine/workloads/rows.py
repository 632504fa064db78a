"""Rows of a prompt file as items of a workload. Knows our own row format and nothing of files' forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.errors import UserError
from engine.workloads.base import WorkItem
from engine.workloads.files import file_text, parsed

KEYS = ("prompt", "messages", "turns", "question", "ids")
EXTRAS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "system": (lambda v: isinstance(v, str), "text"),
    "at": (lambda v: type(v) in (int, float) and 0 <= v < math.inf, "a number of seconds, at least 0"),
    "max_tokens": (lambda v: type(v) is int and v >= 1, "a whole number, at least 1"),
}


def read_rows(path: Path, setting: str = "workload.path") -> list[WorkItem]:
    """Items of a JSONL file or a JSON array. UserError names the first bad line, or the setting that named a
    file without any; blank lines are skipped."""
    return parsed(path, parse_row, setting)


def read_text(path: Path, setting: str = "workload.path") -> list[WorkItem]:
    """One prompt a line; blank lines are skipped. UserError names the setting of a file without any."""
    lines = [line.removesuffix("\r") for line in file_text(path, setting).split("\n")]
    items = [WorkItem(prompt=line) for line in lines if line.strip()]
    if not items:
        raise UserError(f"{setting}={path} holds no prompts")
    return items


def parse_row(row: Any, where: str) -> WorkItem:
    """One JSON object as an item; `where` opens the error message. Keys other than ours are ignored."""
    as_object(row, where)
    key = next((name for name in KEYS if name in row), None)
    if key is None:
        found = ", ".join(list(row)[:6]) or "nothing"
        raise UserError(f"{where}: needs one of the keys {', '.join(KEYS[:-1])}; it has {found}")
    return replace(_PARSERS[key](row[key], f"{where}: {key}"), **_extras(row, key, where))


def as_object(row: Any, where: str) -> dict[str, Any]:
    """The row, if it is a JSON object."""
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected a JSON object, found {type(row).__name__}")
    return row


def text_of(row: Mapping[str, Any], key: str, where: str) -> str:
    """The row's text under `key`, which has to be there and hold more than spaces."""
    if key not in row:
        found = ", ".join(list(row)[:6]) or "nothing"
        raise UserError(f"{where}: needs the key {key}; it has {found}")
    value = row[key]
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: {key} has to be text that is not empty")
    return value


def _extras(row: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    """What a row may say beside its text."""
    found = {name: row[name] for name in EXTRAS if row.get(name) is not None}
    for name, value in found.items():
        fits, what = EXTRAS[name]
        if not fits(value):
            raise UserError(f"{where}: {name} has to be {what}")
    if "system" in found and key in ("messages", "ids"):
        raise UserError(f"{where}: system goes with prompt or turns; put it into the {key} themselves")
    return found


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
