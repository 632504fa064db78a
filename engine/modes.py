"""Null objects of the three execution modes: two-batch overlap, piecewise prefill graphs, step graphs.

Free of torch. A mode that exists has the same class facts; rules and explain read them and ask for no names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


class ExecutionMode:
    """One way to run a step's passes. Its facts are class attributes."""

    captures_step: ClassVar[bool] = (
        False  # the whole step sits in a graph: metadata must be built on the device
    )
    contents: ClassVar[tuple[str, ...]] = ()  # stages of a step that the graph holds, in order
    captures_prefill: ClassVar[bool] = False  # prefill runs as graph segments between attention calls
    splits_batch: ClassVar[bool] = False  # two half batches are interleaved
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")  # device types where the mode can run

    @dataclass(frozen=True)
    class Config:
        """No options."""

    def __init__(self, config: Any = None) -> None:
        self.config = config


class NoTwoBatch(ExecutionMode):
    """One batch at a time."""


class NoPiecewise(ExecutionMode):
    """Prefill runs eagerly."""


class NoGraph(ExecutionMode):
    """Decode steps run eagerly."""
