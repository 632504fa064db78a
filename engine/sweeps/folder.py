"""The folder of a sweep: manifest, jobs, the lock that one sweep process holds, and the wish to stop.

All that processes tell each other goes through files here, so that it works the same within one process,
between several, and between machines that share the folder. Runs nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from engine.errors import UserError
from engine.runs import RESULT, claim_folder, write_json
from engine.sweeps.states import JobState

MANIFEST, JOBS, JOB, LOG = "sweep.json", "jobs", "job.json", "log.txt"
_PRIVATE = ".sweep"  # lock, job locks and the stop file: of no interest to a reader
STOP, FORCE, FAIL_FAST = "stop", "force", "fail_fast"


@dataclass(frozen=True)
class SweepFolder:
    """path: absolute. Every JSON file in it is written whole or not at all."""

    path: Path

    @classmethod
    def create(cls, wanted: str) -> SweepFolder:
        """A new folder; where the name is taken, `-1`, `-2`, ... is appended: no two sweeps share one."""
        try:
            path = claim_folder(Path(wanted).absolute())
            (path / JOBS).mkdir()
        except OSError as error:
            reason = error.strerror or str(error)
            raise UserError(
                f"cannot make the folder {wanted}: {reason}; choose another with hydra.sweep.dir=FOLDER"
            ) from error
        return cls(path)

    @classmethod
    def open(cls, directory: str) -> SweepFolder:
        """The folder of a sweep that was started. UserError for any other."""
        path = Path(directory).expanduser().resolve()
        if not (path / MANIFEST).is_file():
            reason = "there is no such folder" if not path.exists() else f"it holds no {MANIFEST}"
            raise UserError(f"resume={directory} is not the folder of a sweep: {reason}")
        return cls(path)

    def job(self, cell_id: str) -> Path:
        return self.path / JOBS / cell_id

    def state(self, cell_id: str) -> JobState | None:
        """How the job ended; None: it has not, or its job.json cannot be read."""
        try:
            return JobState.from_document(_read(self.job(cell_id) / JOB))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def states(self, cell_ids: Iterable[str]) -> dict[str, JobState]:
        """Of the jobs that have ended."""
        found = {cell_id: self.state(cell_id) for cell_id in cell_ids}
        return {cell_id: state for cell_id, state in found.items() if state is not None}

    def result(self, cell_id: str) -> dict[str, Any]:
        """result.json of a job; empty where it left none."""
        try:
            return _read(self.job(cell_id) / RESULT)
        except (OSError, ValueError):
            return {}

    def write_manifest(self, document: Mapping[str, Any]) -> None:
        write_json(self.path / MANIFEST, document)

    def manifest(self) -> dict[str, Any]:
        """UserError for a file that is no manifest."""
        try:
            return _read(self.path / MANIFEST)
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path / MANIFEST} is damaged: start the sweep again") from error

    def write_state(self, state: JobState) -> None:
        write_json(self.job(state.id) / JOB, state.as_document())

    def clear(self, cell_id: str) -> None:
        """Remove what an earlier attempt left."""
        shutil.rmtree(self.job(cell_id), ignore_errors=True)
        self.job(cell_id).mkdir(parents=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the sweep; UserError while another process does. The system frees it when a process dies."""
        with self._lock("lock") as held:
            if held is None:
                owner = (self.path / _PRIVATE / "lock").read_text(encoding="utf-8").strip()
                raise UserError(
                    f"{self.path} is being worked on by {owner or 'another process'}: wait for it, or stop it"
                )
            held.truncate(0)
            held.write(f"process {os.getpid()} on {platform.node()}\n")
            held.flush()
            self.clear_wish()
            yield

    @contextmanager
    def job_locked(self, cell_id: str) -> Iterator[bool]:
        """Hold one job; gives False while another process does (a job that outlived its sweep)."""
        with self._lock(cell_id) as held:
            yield held is not None

    def wish(self) -> str:
        """What was asked of the running jobs: "", STOP, FORCE or FAIL_FAST."""
        try:
            return (self.path / _PRIVATE / "wish").read_text(encoding="utf-8")
        except OSError:
            return ""

    def ask(self, wish: str) -> None:
        (self.path / _PRIVATE).mkdir(exist_ok=True)
        partial = self.path / _PRIVATE / f"wish.{os.getpid()}.{wish}"
        partial.write_text(wish, encoding="utf-8")
        os.replace(partial, self.path / _PRIVATE / "wish")

    def clear_wish(self) -> None:
        (self.path / _PRIVATE / "wish").unlink(missing_ok=True)

    @contextmanager
    def _lock(self, name: str) -> Iterator[TextIO | None]:
        (self.path / _PRIVATE).mkdir(exist_ok=True)
        with open(self.path / _PRIVATE / name, "a", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield None
                return
            yield file


def _read(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict):
        raise ValueError(f"{path} holds no object")
    return document
