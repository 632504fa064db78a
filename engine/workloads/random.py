"""Random token ids of given lengths: a load, not a text. Knows nothing of meaning, and says so."""

from __future__ import annotations

import random
from dataclasses import dataclass

from engine.build import number
from engine.workloads.base import WorkItem, Workload
from engine.workloads.lengths import check_length, draw_length


class RandomTokens(Workload):
    """`count` prompts of `input_len` tokens, the same for the same seed and vocabulary."""

    representative = False  # drafters guess text; nobody can guess noise, and a repeated loop flatters them

    @dataclass(frozen=True)
    class Config(Workload.Config):
        """input_len: tokens of a prompt, a number or [shortest, longest]. output_len: the same for the
        answer; null: sampling.max_tokens. task.ignore_eos=true makes answers as long as that."""

        count: int = number(16, ge=1)
        input_len: int | tuple[int, int] = number(128, ge=1)
        output_len: int | tuple[int, int] | None = number(None, ge=1)
        seed: int = number(0, ge=0)
        limit: int | None = number(None, ge=1)

    def __init__(self, config: Config) -> None:
        check_length(config.input_len, "workload.input_len")
        check_length(config.output_len or 1, "workload.output_len")
        self._config = config

    def items(self, vocab_size: int) -> list[WorkItem]:
        c = self._config
        draw = random.Random(c.seed)
        wanted = c.count if c.limit is None else min(c.count, c.limit)
        return [self._item(draw, vocab_size) for _ in range(wanted)]

    def _item(self, draw: random.Random, vocab_size: int) -> WorkItem:
        c = self._config
        ids = tuple(draw.choices(range(vocab_size), k=draw_length(c.input_len, draw)))
        return WorkItem(ids=ids, max_tokens=None if c.output_len is None else draw_length(c.output_len, draw))
