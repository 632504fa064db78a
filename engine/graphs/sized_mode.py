"""What the graph modes have in common: captured batch sizes, and how long to wait before more is captured.

Importable without torch.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from engine.build import number
from engine.graphs.hesitation import Hesitation
from engine.graphs.sizes import AUTO, BatchSizes, chosen_sizes, size_problems
from engine.modes import GraphMode, ModeContext

logger = logging.getLogger("syncless")
_FOR_CHECKS = "%s without a GPU replays recorded operations: for checks, no faster than graph=none%s"
_SLOW_START = (
    "; capturing all {} batch sizes before the first request can take minutes here, "
    "graph.sizes=[1] captures one alone (larger batches run without a graph)"
)


class SizedGraph(GraphMode):
    """A mode with one graph for each batch size, width and sampling class."""

    @dataclass(frozen=True)
    class Config:
        """sizes: batch sizes to capture, "auto" or a list. capture_after: eager uses of another width or
        sampling class before its graph is captured."""

        sizes: str | tuple[int, ...] = AUTO
        capture_after: int = number(16, ge=0)

    config: SizedGraph.Config

    @classmethod
    def check(cls, config: Config) -> list[str]:
        """What is wrong with a Config, one sentence each."""
        return size_problems(config.sizes)

    @classmethod
    def planned_sizes(cls, config: Config, max_running: int) -> tuple[int, ...]:
        """The batch sizes that a configuration comes to, in order; none where its values are wrong."""
        return () if size_problems(config.sizes) else chosen_sizes(config.sizes, max_running)

    def sizes(self, max_running: int) -> tuple[int, ...]:
        return self.planned_sizes(self.config, max_running)

    def batch_sizes(self, context: ModeContext) -> BatchSizes:
        """The same, to be asked."""
        return BatchSizes(self.sizes(context.max_running))

    def hesitation(self, context: ModeContext) -> Hesitation:
        """When to capture while serving."""
        largest = self.batch_sizes(context).largest
        room = context.capturer.has_room
        return Hesitation(self.config.capture_after, largest, context.metrics, room)

    def announce(self, name: str, context: ModeContext) -> None:
        """Say what a user of this device should not expect."""
        if context.device != "cpu":
            return
        count = len(self.sizes(context.max_running))
        logger.warning(_FOR_CHECKS, name, _SLOW_START.format(count) if count > 1 else "")
