"""Jobs of one prompt token that name their key, for tests of when requests come and what they took."""

from __future__ import annotations

from engine.params import SamplingParams
from engine.tasks.drive import Job


def job(key: int, at: float, tokens: int = 3) -> Job:
    return Job(key, (key,), SamplingParams(max_tokens=tokens), at)
