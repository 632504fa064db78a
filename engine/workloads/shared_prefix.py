"""Groups of prompts that begin alike, as with a common system prompt: a load for the prefix cache.

Random token ids, so it is not representative of text. Knows nothing of caches.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from engine.build import number
from engine.workloads.base import WorkItem, Workload
from engine.workloads.lengths import Length, check_length, draw_length


class SharedPrefix(Workload):
    """`groups` prefixes, each followed by `per_group` endings of its own; requests in random order."""

    representative = False  # see RandomTokens

    @dataclass(frozen=True)
    class Config(Workload.Config):
        """prefix_len, suffix_len, output_len: tokens, a number or [shortest, longest]; output_len null:
        sampling.max_tokens."""

        groups: int = number(4, ge=1)
        per_group: int = number(8, ge=1)
        prefix_len: int | tuple[int, int] = number(256, ge=1)
        suffix_len: int | tuple[int, int] = number(32, ge=1)
        output_len: int | tuple[int, int] | None = number(None, ge=1)
        seed: int = number(0, ge=0)
        limit: int | None = number(None, ge=1)

    def __init__(self, config: Config) -> None:
        check_length(config.prefix_len, "workload.prefix_len")
        check_length(config.suffix_len, "workload.suffix_len")
        check_length(config.output_len or 1, "workload.output_len")
        self._config = config

    def items(self, vocab_size: int) -> list[WorkItem]:
        c = self._config
        draw = random.Random(c.seed)
        made = []
        for _ in range(c.groups):
            prefix = _ids(draw, vocab_size, c.prefix_len)
            made += [prefix + _ids(draw, vocab_size, c.suffix_len) for _ in range(c.per_group)]
        draw.shuffle(made)
        return [self._item(ids, draw) for ids in made[: c.limit]]

    def _item(self, ids: tuple[int, ...], draw: random.Random) -> WorkItem:
        wanted = self._config.output_len
        return WorkItem(ids=ids, max_tokens=None if wanted is None else draw_length(wanted, draw))


def _ids(draw: random.Random, vocab_size: int, length: Length) -> tuple[int, ...]:
    return tuple(draw.choices(range(vocab_size), k=draw_length(length, draw)))
