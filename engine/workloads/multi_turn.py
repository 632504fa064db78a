"""Conversations of several turns about a subject: each turn re-sends everything said before it.

The texts are made of a few patterns of our own. Knows nothing of how conversations are driven.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from engine.build import number
from engine.workloads.base import WorkItem, Workload

SUBJECTS = (
    "tides",
    "bread",
    "bicycles",
    "glaciers",
    "bees",
    "bridges",
    "the violin",
    "volcanoes",
    "paper",
    "the moon",
    "coffee",
    "lighthouses",
    "chess",
    "rivers",
    "clocks",
    "maps",
)
OPENINGS = (
    "Explain {subject} to someone who has never heard of it.",
    "What should everybody know about {subject}?",
    "How did people come to care about {subject}?",
    "Describe {subject} in a few sentences.",
)
FOLLOW_UPS = (
    "Why is that so?",
    "Give an example from everyday life.",
    "What do people often get wrong about it?",
    "Compare it with {other}.",
    "Say the same in simpler words.",
    "What would change if it did not exist?",
    "Sum up what you have said so far in one sentence.",
    "How does it depend on the weather?",
    "What would you ask an expert about it?",
)


class MultiTurn(Workload):
    """`count` conversations of `turns` user turns; the engine's own answers become the history."""

    @dataclass(frozen=True)
    class Config(Workload.Config):
        """turns: of each conversation. system: text that opens every one of them; null: none."""

        count: int = number(8, ge=1)
        turns: int = number(4, ge=2)
        system: str | None = None
        seed: int = number(0, ge=0)
        limit: int | None = number(None, ge=1)

    def __init__(self, config: Config) -> None:
        self._config = config

    def items(self, vocab_size: int) -> list[WorkItem]:
        c = self._config
        draw = random.Random(c.seed)
        made = [_conversation(draw, c.turns) for _ in range(c.count)]
        return [WorkItem(turns=turns, system=c.system or None) for turns in made[: c.limit]]


def _conversation(draw: random.Random, turns: int) -> tuple[str, ...]:
    subject, other = draw.sample(SUBJECTS, 2)
    following: list[str] = []
    while len(following) < turns - 1:
        following += draw.sample(FOLLOW_UPS, len(FOLLOW_UPS))
    patterns = (draw.choice(OPENINGS), *following[: turns - 1])
    return tuple(pattern.format(subject=subject, other=other) for pattern in patterns)
