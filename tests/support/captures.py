"""What a capturer has made so far."""

from engine.graphs.capture import Capturer


def captures(capturer: Capturer) -> int:
    """Of all phases."""
    return sum(cost.captures for cost in capturer.costs.values())
