"""The adaptive policy over made-up costs and a card, a batch that oscillates, and steps of one request."""

from __future__ import annotations

from speculative.adaptive import AdaptiveWidth
from speculative.width import StepCosts, WidthChoice

DEPTHS = {width: width - 1 for width in range(2, 6)}
CARD = (0.75, 0.5, 0.3, 0.2)


def policy(table: StepCosts, card: tuple[float, ...] | None = CARD) -> AdaptiveWidth:
    return AdaptiveWidth(DEPTHS, table, card)


def oscillating(step: int) -> int:
    """4 and 6 requests in turn, eight steps each."""
    return 4 if step // 8 % 2 == 0 else 6


def drive(chosen: AdaptiveWidth, record: object, steps: int) -> list[WidthChoice]:
    """Steps of one request whose drafts are all rejected, results at once."""
    found = []
    for _ in range(steps):
        found.append(chosen.choose([record]))
        chosen.learn(record, found[-1].width, found[-1].width - 1, 0, 0)
    return found
