"""The files of a training task: prompts to read, and text that the target said, kept for later runs.

Importable without torch. Knows formats only.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import UserError
from engine.text.escapes import unescape
from engine.workloads.base import WorkItem
from engine.workloads.rows import read_rows, read_text

Sequences = list[tuple[tuple[int, ...], int]]
PromptFile = tuple[str, list[WorkItem]]


def read_prompts(paths: Sequence[str], option: str) -> list[PromptFile]:
    """(path, its prompts) of each file: JSONL (prompt, question, turns, messages) or text, one a line."""
    found = []
    for name in paths:
        path = Path(name).expanduser()
        if not path.is_file():
            raise UserError(f"{option}: there is no file {name}")
        read = read_rows if path.suffix in (".jsonl", ".json", ".parquet") else read_text
        found.append((name, read(path, option)))
    return found


def set_names(paths: Sequence[str]) -> list[str]:
    """What the set of each file is called: its folder, as data sets lie in one each; with the file's own name
    where two files share a folder, and with as many folders above as tell them apart. Never an absolute path:
    they are published with the draft."""
    files = [Path(name) for name in paths]
    folders = [file.parent.name or file.stem for file in files]
    both = [f"{folder}/{file.stem}" for folder, file in zip(folders, files, strict=True)]
    parts = [file.parts[bool(file.anchor) :] for file in files]
    longer = (
        ["/".join(own[-depth:]) for own in parts] for depth in range(3, max(map(len, parts), default=0) + 1)
    )
    numbered = [f"{name} {number}" for number, name in enumerate(both, 1)]
    return next((names for names in (folders, both, *longer) if len(set(names)) == len(set(paths))), numbered)


def read_openings(name: str) -> tuple[str, ...]:
    """Texts that made-up user turns begin with, one a line; an empty line is an empty beginning."""
    path = Path(name).expanduser()
    if not path.is_file():
        raise UserError(f"task.openings: there is no file {name}")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(
            f"task.openings: {name} is not UTF-8 text (byte {error.start}): convert the file first"
        ) from error
    return tuple(unescape(line) for line in lines) or ("",)


def check_apart(trained: Sequence[PromptFile], exams: Sequence[PromptFile]) -> None:
    """UserError when a prompt to measure on is also one to train on; how texts are spaced makes no
    difference."""
    known = {_words(item.as_row()) for _, items in trained for item in items}
    for name, items in exams:
        shared = sum(_words(item.as_row()) in known for item in items)
        if shared:
            raise UserError(
                f"task.evaluate: {shared} prompts of {name} are in task.prompts too; measured on text that "
                "it was trained on, a draft looks better than it is, so take them out of one of the two"
            )


def unseen(texts: Sequences, prompts: Iterable[Sequence[int]]) -> Sequences:
    """Without the sequences that answer one of `prompts`, which are to be measured on."""
    exams = {tuple(ids) for ids in prompts}
    return [(ids, prompt) for ids, prompt in texts if ids[:prompt] not in exams]


def _words(value: Any) -> str:
    """A row as JSON, every text in it with single spaces."""
    if isinstance(value, str):
        return json.dumps(" ".join(value.split()))
    if isinstance(value, Mapping):
        return json.dumps([(key, _words(part)) for key, part in value.items()])
    return json.dumps([_words(part) for part in value] if isinstance(value, Sequence) else value)


def save_text(path: Path, sequences: Sequences) -> None:
    """Compressed; ids in 16 bits where they fit."""
    flat = np.fromiter((i for ids, _ in sequences for i in ids), dtype=np.uint32)
    small = flat.astype(np.uint16) if flat.max(initial=0) < 1 << 16 else flat
    np.savez_compressed(
        path,
        tokens=small,
        lengths=np.array([len(ids) for ids, _ in sequences], dtype=np.int32),
        prompts=np.array([prompt for _, prompt in sequences], dtype=np.int32),
    )


def load_text(name: str, vocab: int, option: str = "task.text", kind: str = "text.npz") -> Sequences:
    """What `save_text` wrote. option, kind: which setting names it, and what such a file is called. UserError
    for another file, or for ids past a vocabulary of `vocab`."""
    path = Path(name).expanduser()
    try:
        tokens, lengths, prompts = _arrays(path)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{option}={name} is no {kind} that task=train_eagle3 wrote: {error}") from error
    if tokens.max(initial=0) >= vocab:
        raise UserError(
            f"{option}={name} holds token {tokens.max()}, but this model's vocabulary ends at {vocab - 1}: "
            "the text is another model's"
        )
    ends = lengths.cumsum()
    parts = np.split(tokens, ends[:-1]) if len(ends) else []
    return [(tuple(part.tolist()), int(prompt)) for part, prompt in zip(parts, prompts, strict=True)]


def _arrays(path: Path) -> tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.integer]]:
    """(tokens, lengths, prompts). ValueError where they contradict each other."""
    with path.open("rb") as whole:
        if not zipfile.is_zipfile(whole):  # np.load would read a lone array, too
            raise ValueError("it is cut, or another kind of file")
    with np.load(path, allow_pickle=False) as file:
        tokens, lengths, prompts = (file[key] for key in ("tokens", "lengths", "prompts"))
    for values in (tokens, lengths, prompts):
        if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer) or values.min(initial=0) < 0:
            raise ValueError("it holds something else than lists of ids and lengths")
    if lengths.sum() != tokens.size or prompts.shape != lengths.shape or (prompts > lengths).any():
        raise ValueError("its lengths do not fit its tokens")
    return tokens, lengths, prompts
