"""Documents out of corpus files: plain text, or JSONL with a `text` field. Knows nothing of tokens.

Files are read line by line, so a large one is never held whole. Free of torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from engine.errors import UserError

PIECE = 1 << 16  # characters of plain text that are handed on at once, up to the end of a line


def corpus_problems(paths: tuple[str, ...]) -> list[str]:
    """What is wrong with the names alone, one sentence each."""
    if not paths:
        return ["spec.corpus=[] names no file; use spec.corpus=FILE, or spec.corpus=null for none"]
    problems = []
    for name in paths:
        path = Path(name).expanduser()
        if not name or path.is_dir():
            problems.append(
                f"spec.corpus={name!r} is no file; use a text or .jsonl file, or spec.corpus=null"
            )
        elif not path.is_file():
            problems.append(
                f"spec.corpus={name} does not exist (looked in {path.absolute().parent}); "
                "use the path of a text or .jsonl file, or spec.corpus=null"
            )
    return problems


def documents(name: str) -> Iterator[Iterator[str]]:
    """The documents of a file, each as pieces of text in order. A text file is one document; of a .jsonl
    file each line. UserError names the line that is not UTF-8, not JSON or without text."""
    path = Path(name).expanduser()
    if path.suffix.lower() != ".jsonl":
        yield _pieces(_lines(path))
        return
    for number, line in _lines(path):
        if line.strip():
            yield iter((_text_of(line, f"{path}, line {number}"),))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                try:
                    yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"spec.corpus: {path}, line {number}, is not UTF-8 ({error.reason} at byte "
                        f"{error.start + 1} of the line); convert the file to UTF-8"
                    ) from error
    except OSError as error:
        raise UserError(
            f"spec.corpus={path} cannot be read: {error.strerror}; use a readable file"
        ) from error


def _pieces(lines: Iterator[tuple[int, str]]) -> Iterator[str]:
    held: list[str] = []
    size = 0
    for _, line in lines:
        held.append(line)
        size += len(line)
        if size >= PIECE:
            yield "".join(held)
            held, size = [], 0
    if held:
        yield "".join(held)


def _text_of(line: str, where: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # numbers of too many digits, nesting too deep
        raise UserError(
            f"spec.corpus: {where}, is not JSON ({getattr(error, 'msg', error)}); use one JSON object a line"
        ) from error
    text = row.get("text") if isinstance(row, dict) else None
    if not isinstance(text, str):
        raise UserError(
            f'spec.corpus: {where}, has no field "text" that holds text; use lines like {{"text": "..."}}'
        )
    return text
