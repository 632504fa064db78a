"""What captures have cost, by phase. Plain numbers, free of torch; knows no graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class CaptureCost:
    """What captures have cost so far. bytes: of device memory that the graphs hold, the driver's part
    included; 0 on the CPU."""

    captures: int = 0
    seconds: float = 0.0
    bytes: int = 0


def cost_rows(costs: Mapping[str, CaptureCost]) -> dict[str, Any]:
    """For a result: {phase: {captures, seconds, bytes}}."""
    return {phase: asdict(cost) for phase, cost in costs.items()}
