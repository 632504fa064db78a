"""Opens data files (JSONL, a JSON array, Parquet, plain lines); each entry comes with its place in the file.

Knows file forms, not what the entries mean. Importable without torch.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from engine.errors import UserError

T = TypeVar("T")
SUFFIXES = (".jsonl", ".json", ".parquet", ".txt")


@dataclass(frozen=True)
class Entry:
    """One value of a file. where: "FILE, line 3"; opens error messages."""

    where: str
    value: Any


def entries(path: Path, setting: str = "workload.path") -> Iterator[Entry]:
    """The values of a JSONL file, of a .json file that holds an array, or of a Parquet file, in order.

    setting: the option that named the file. Raises UserError at the first entry that cannot be read.
    """
    if path.suffix == ".parquet":
        return _parquet(path, setting)
    text = file_text(path, setting)
    if path.suffix == ".json" and text.lstrip()[:1] == "[":
        return _array(text, path)
    return _lines(text, path)


def file_text(path: Path, setting: str = "workload.path") -> str:
    """The whole file. UserError where it cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}): convert the file first") from error
    except OSError as error:
        raise UserError(f"cannot read {setting}={path}: {error.strerror or error}") from error


def parsed(
    path: Path, parse: Callable[[Any, str], T | None], setting: str = "workload.path", what: str = "prompts"
) -> list[T]:
    """Every entry through `parse(value, where)`, which leaves one out by None. UserError if none is left."""
    every = (parse(entry.value, entry.where) for entry in entries(path, setting))
    found = [item for item in every if item is not None]
    if not found:
        raise UserError(f"{setting}={path} holds no {what}")
    return found


def _lines(text: str, path: Path) -> Iterator[Entry]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield Entry(where, _decoded(line, where))


def _array(text: str, path: Path) -> Iterator[Entry]:
    for number, value in enumerate(_decoded(text, str(path)), start=1):
        yield Entry(f"{path}, entry {number}", value)


def _decoded(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # the latter: nested too deeply
        raise UserError(f"{where}: not JSON ({error})") from error


def _parquet(path: Path, setting: str) -> Iterator[Entry]:
    """Rows of a Parquet file; the reader is an optional package."""
    if not path.is_file():
        raise UserError(f"cannot read {setting}={path}: No such file or directory")
    try:
        reader = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise UserError(
            f"{setting}={path} is a Parquet file, and reading it needs pyarrow: pip install pyarrow, "
            "or give a JSONL file"
        ) from error
    try:
        rows = reader.read_table(path).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors are of these kinds
        raise UserError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from error
    for number, row in enumerate(rows, start=1):
        yield Entry(f"{path}, row {number}", row)
