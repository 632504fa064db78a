"""A model of decoding for policies of width: acceptance rates and step costs go in, seconds come out.

Time is counted in the seconds of the true cost table, tokens exactly; results arrive a step late.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from speculative.width import StepCosts, WidthPolicy

Rates = Callable[[int], Sequence[float]]  # tokens known -> acceptance at each depth given the one before


def constant(*rates: float) -> Rates:
    return lambda tokens: rates


def costs(growth: float, widths: int = 5, batches: Sequence[int] = (1, 2, 4, 8, 16), resume: float = 1.0):
    """A plain step of batch b takes 1 + 0.1 * (b - 1); each draft adds `growth` plain steps."""
    plain = {b: 1 + 0.1 * (b - 1) for b in batches}
    seconds = {(b, w): plain[b] * (1 + growth * (w - 1)) for b in batches for w in range(1, widths + 1)}
    return StepCosts(seconds, {b: resume * plain[b] for b in batches})


@dataclass
class Req:
    rates: Rates
    length: int
    record: object = None
    tokens: int = 0
    drafts: bool = True


@dataclass
class Trace:
    """What happened: seconds, what plain decoding takes for the same tokens, and the widths of all steps."""

    seconds: float = 0.0
    plain: float = 0.0
    tokens: int = 0
    widths: list[int] = field(default_factory=list)
    resumed: int = 0

    @property
    def speedup(self) -> float:
        return self.plain / self.seconds


def decode(
    policy: WidthPolicy,
    table: StepCosts,
    waiting: Sequence[Req],
    concurrency: Callable[[int], int] = lambda step: 1,
    *,
    seed: int = 0,
    lag: int = 1,
) -> Trace:
    """Run all requests, `concurrency(step)` at a time; plain time is that of the same batches without drafts:
    each emitted token takes its request's share of a plain step."""
    rng, trace = random.Random(seed), Trace()
    queue, running, late = list(waiting), [], []
    for request in queue:
        request.record = policy.open()
    step = 0
    while queue or running or late:
        while queue and len(running) < concurrency(step):
            running.append(queue.pop(0))
            policy.prefilled(running[-1].record)
        batch = running[: max(concurrency(step), 1)]
        if batch:
            late.append(_launch(policy, table, batch, trace, rng))
        while len(late) > (lag if batch else 0):
            for result in late.pop(0):
                policy.learn(*result)
        running = [r for r in running if r.tokens < r.length]
        step += 1
    return trace


def _launch(policy, table, batch, trace, rng):  # type: ignore[no-untyped-def]
    choice = policy.choose([r.record for r in batch])
    size, width = len(batch), choice.width
    plain = table.at(size, 1)
    trace.seconds += table.at(size, width) + (table.resume_at(size) if choice.resume else 0)
    trace.widths.append(width)
    trace.resumed += choice.resume
    results = []
    for request in batch:
        taken = _accepted(request, width, rng)
        trace.plain += plain * (1 + taken) / size
        trace.tokens += 1 + taken
        request.tokens += 1 + taken
        results.append((request.record, width, (width - 1) * request.drafts, taken, 0))
    return results


def _accepted(request: Req, width: int, rng: random.Random) -> int:
    rates = request.rates(request.tokens)
    taken = 0
    while request.drafts and taken < width - 1 and rng.random() < rates[taken]:
        taken += 1
    return taken


def best_fixed(table: StepCosts, batch: int, rates: Sequence[float], widths: int = 5) -> float:
    """The expected speed-up of the best fixed width, 1 among them."""
    found = []
    for width in range(1, widths + 1):
        tokens, reached = 1.0, 1.0
        for rate in rates[: width - 1]:
            reached *= rate
            tokens += reached
        found.append(tokens * table.at(batch, 1) / table.at(batch, width))
    return max(found)
