"""Workloads made of published data sets: a file of theirs, a hub id, or the few rows of our own that ship.

Knows how such a file is named and found, not what its rows hold. Importable without torch.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from engine.build import number
from engine.errors import UserError
from engine.models.hub import is_hub_id
from engine.workloads.base import WorkItem, Workload
from engine.workloads.files import SUFFIXES, parsed
from engine.workloads.hub import check_client, dataset_file

T = TypeVar("T")
SAMPLE = "sample"


@dataclass(frozen=True)
class DataSet(Generic[T]):
    """A published kind of file. form: how a row looks. origin: where the real file is to be had. sample: rows
    of our own words in that form. hub: patterns of the test file in a hub data set, best first; empty: it has
    none. parse: one row, and the words that say where it stands; None leaves it out."""

    name: str
    form: str
    origin: str
    sample: Path
    hub: tuple[str, ...]
    parse: Callable[[Any, str], T | None]
    what: str = "prompts"

    def explanation(self, group: str) -> str:
        """What to do where no file was named."""
        return (
            f"{group}={self.name} needs its data: set {group}.path=FILE, with rows such as {self.form} "
            f"({self.origin}); {group}.path={SAMPLE} takes the few rows that ship with Syncless"
        )


class Source(Generic[T]):
    """The rows behind a path. What is on this machine is read, and judged, at construction."""

    def __init__(self, data: DataSet[T], path: str | None, group: str) -> None:
        """path: a file, a hub id or "sample". group: the config group whose option named it."""
        if not path:
            raise UserError(data.explanation(group))
        self._data, self._path, self._setting = data, path, f"{group}.path"
        self._rows: list[T] | None = None
        file = self._local()
        if file is None:
            check_client(path, self._setting)
        else:
            self._read(file)

    def fetch(self) -> None:
        """Download the file where that is needed."""
        if self._rows is None:
            self._read(dataset_file(self._path, self._data.hub, self._setting, download=True))

    @property
    def rows(self) -> Sequence[T]:
        assert self._rows is not None, "fetch() comes first"
        return self._rows

    def _local(self) -> Path | None:
        """The file to read; None: it has to be fetched."""
        if self._path == SAMPLE:
            return self._data.sample
        file = Path(self._path).expanduser()
        if file.exists() or not self._data.hub or file.suffix in SUFFIXES or not is_hub_id(self._path):
            return file
        return dataset_file(self._path, self._data.hub, self._setting, download=False)

    def _read(self, file: Path | None) -> None:
        assert file is not None
        self._rows = parsed(file, self._data.parse, self._setting, self._data.what)


class DataWorkload(Workload, Generic[T]):
    """Items of a data set's rows, in the file's order or in a random one."""

    data: ClassVar[DataSet[Any]]

    @dataclass(frozen=True)
    class Config(Workload.Config):
        """path: a file, a hub id, or "sample". limit: the first so many. seed: shuffle before that, so that
        limit takes a random part; null: the file's order."""

        path: str | None = None
        limit: int | None = number(None, ge=1)
        seed: int | None = number(None, ge=0)

    def __init__(self, config: Config) -> None:
        self._config = config
        self._source: Source[T] = Source(self.data, config.path, "workload")

    def fetch(self) -> None:
        self._source.fetch()

    def items(self, vocab_size: int) -> list[WorkItem]:
        every = picked(self._source.rows, None, self._config.seed)
        return [item for row in every for item in self.asked(row)][: self._config.limit]

    @abstractmethod
    def asked(self, row: T) -> list[WorkItem]:
        """The requests that one row makes; at least one."""


def picked(rows: Sequence[T], limit: int | None, seed: int | None) -> list[T]:
    """The first `limit` of the rows, shuffled before that where there is a seed."""
    chosen = list(rows)
    if seed is not None:
        random.Random(seed).shuffle(chosen)
    return chosen[:limit]
