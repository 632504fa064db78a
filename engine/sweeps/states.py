"""How a job of a sweep ended, as job.json holds it. Knows no process and no file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

FINISHED, FAILED, KILLED = "finished", "failed", "killed"
TIMEOUT, OUT_OF_MEMORY, INTERRUPTED = "timeout", "out_of_memory", "interrupted"
FAILURES = (FAILED, KILLED, TIMEOUT, OUT_OF_MEMORY)  # done again only when asked
OK, REJECTED = "ok", "rejected"  # verdicts of cells, before anything runs


@dataclass(frozen=True)
class JobState:
    """id: of the cell. reason: one sentence where the job did not finish. exit_code: negative for a signal.
    started, ended: ISO 8601 with the zone. attempt: counts from 1."""

    id: str
    state: str
    reason: str | None
    exit_code: int | None
    seconds: float
    started: str
    ended: str
    attempt: int = 1

    def as_document(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> JobState:
        """Unknown keys (of a later version) are left out. KeyError for a file of another kind."""
        return cls(**{field.name: document[field.name] for field in fields(cls)})
