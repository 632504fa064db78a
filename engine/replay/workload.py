"""The saved requests of a run with times, handed over at once and in their order.

In a replay the recorded course says when each of them begins, not a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.build import TARGET, target_class
from engine.runs import read_lines
from engine.workloads.base import WorkItem
from engine.workloads.file import FileWorkload

INSTANT = 1e-9  # seconds between two requests: the order is kept, nobody waits


class InOrder(FileWorkload):
    """A workload of which only the order of arrival is left."""

    @dataclass(frozen=True)
    class Config(FileWorkload.Config):
        """representative: as the workload was that the requests came from."""

        representative: bool = True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.representative = config.representative

    def items(self, vocab_size: int) -> list[WorkItem]:
        found = super().items(vocab_size)
        ranks = {at: rank for rank, at in enumerate(sorted({item.at for item in found}))}
        return [replace(item, at=ranks[item.at] * INSTANT) for item in found]


def in_order(config: Mapping[str, Any], lines: Path) -> Mapping[str, Any]:
    """The config whose requests do not wait for their times; itself where none has one."""
    rows = read_lines(lines) if lines.is_file() else []
    if not any(row.get("at") for row in rows):
        return config
    honest = getattr(target_class(config["workload"][TARGET]), "representative", True)
    workload = {TARGET: f"{__name__}.InOrder", "path": str(lines), "representative": honest}
    arrivals = {TARGET: "engine.workloads.arrivals.AsGiven"}
    return {**config, "workload": workload, "arrivals": arrivals}
