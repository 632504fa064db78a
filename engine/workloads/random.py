"""Random token ids of a given length: a load, not a text. Knows nothing of meaning, and says so."""

from __future__ import annotations

import random
from dataclasses import dataclass

from engine.build import number
from engine.workloads.base import WorkItem, Workload


class RandomTokens(Workload):
    """`count` prompts of exactly `input_len` tokens, the same for the same seed and vocabulary."""

    representative = False  # drafters guess text; nobody can guess noise, and a repeated loop flatters them

    @dataclass(frozen=True)
    class Config(Workload.Config):
        """input_len: tokens a prompt. The output length is sampling.max_tokens, with task.ignore_eos=true."""

        count: int = number(16, ge=1)
        input_len: int = number(128, ge=1)
        seed: int = number(0, ge=0)
        limit: int | None = number(None, ge=1)

    def __init__(self, config: Config) -> None:
        self._config = config

    def items(self, vocab_size: int) -> list[WorkItem]:
        c = self._config
        draw = random.Random(c.seed)
        wanted = c.count if c.limit is None else min(c.count, c.limit)
        return [WorkItem(ids=tuple(draw.choices(range(vocab_size), k=c.input_len))) for _ in range(wanted)]
