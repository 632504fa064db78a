"""The width of an n-gram step: none while drafts would fail, wide while they come true.

Host data only, a deterministic function of results. Knows signals and step costs, no tensor and no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from speculative.ngram.signal import unpack_signal
from speculative.width import StepCosts, WidthChoice, WidthPolicy

# How often the first draft was right by match length, SmolLM2-135M-Instruct, greedy, on 160 prompts of four
# kinds; matches of 8 and more alike.
RIGHT_BY_MATCH = (0.05, 0.25, 0.5, 0.6, 0.65, 0.75, 0.8, 0.8, 0.9)
ROW_COST = {"cpu": 0.12, "cuda": 0.01}  # of a further token, in plain steps of one request; unless measured

_STEP = 0.2  # share of the newest outcome in the rate
_START = 0.1  # rate before the first result: drafting has to be earned
_MATCH_SHARE = 0.3  # weight of the match length in the estimate, the rest is the request's own rate
_LEAST_GAIN = 1.05  # tokens for the time, of plain decoding, that a width must promise
_CREDIT = 0.5  # plain steps that a request may lose before drafts have paid,
_CREDIT_PER_TOKEN = 0.005  # and as many more for every token
_SECOND_CHANCE = 0.2  # how often another branch is right where the best one is not
_GRID = 64  # estimates are rounded to 1 / 64, so that expected runs come out of a table


def widths_up_to(widest: int) -> tuple[int, ...]:
    """The widths to choose from: few, since each may have its own graph and its own measured cost."""
    return tuple(sorted({w for w in (1, 2, 3, 5, 8) if w < widest} | {widest}))


@dataclass
class Record:
    """What is known of one request. rate: moving share of positions whose first draft was right. match,
    width: of its last result, width 0 before the first. owed: plain steps that drafting has cost more than
    it brought. tokens: emitted."""

    rate: float = _START
    match: int = 0
    width: int = 0
    owed: float = 0.0
    tokens: int = 0

    def credit(self) -> float:
        """Plain steps that may still be lost."""
        return _CREDIT + _CREDIT_PER_TOKEN * self.tokens - self.owed

    def saw(self, right: bool) -> None:
        """The outcome at one more position."""
        self.rate += _STEP * (right - self.rate)


class NgramWidth(WidthPolicy):
    """The width that promises most tokens for the time, among those whose failure the batch can afford.

    A request's estimate mixes its recent success, shadow drafts of plain steps included, with its last match
    length. Every request has an account: drafting costs, accepted tokens pay. With an empty account its steps
    are plain ones, so whatever the text is like, no more than a small share of the time is lost.
    """

    def __init__(self, widest: int, depth: int, costs: StepCosts | None, device: str) -> None:
        """depth: tokens of a continuation. costs: measured, must hold `widths_up_to(widest)`. device: its
        type, for the built-in costs."""
        self.widest = widest
        self._widths = widths_up_to(widest)
        self._costs = costs
        self._row = ROW_COST.get(device, ROW_COST["cpu"])
        self._relative: dict[int, tuple[float, ...]] = {}
        self._runs = [
            tuple(expected_run(i / _GRID, width, depth) for width in self._widths) for i in range(_GRID + 1)
        ]

    def open(self) -> object:
        return Record()

    def prefilled(self, record: object) -> None:
        assert isinstance(record, Record)
        record.width = 0  # the device starts a new streak

    def choose(self, records: Sequence[object], declined: int = 0) -> WidthChoice:
        known = [record for record in records if isinstance(record, Record)]
        count = len(known)
        if not count:
            return WidthChoice(1)
        batch = count + declined
        relative = self._relative_costs(batch)
        losses = [(cost - 1.0) * batch / count for cost in relative]  # who drafts answers for the others
        expected = [sum(column) for column in zip(*(self._expected(r) for r in known), strict=True)]
        credit = sum(record.credit() for record in known) / count
        best, gain = 0, _LEAST_GAIN
        for i in range(1, len(self._widths)):
            promised = (expected[i] + declined) / (batch * relative[i])
            if promised > gain and losses[i] <= credit:
                best, gain = i, promised
        for record in known:
            record.owed += losses[best]
        return WidthChoice(self._widths[best])

    def learn(self, record: object, width: int, drafted: int, accepted: int, signal: int) -> None:
        assert isinstance(record, Record)
        told = unpack_signal(signal)
        if record.width == 1:  # only now it is known what the shadow draft of that step was worth
            record.saw(told.streak > 0)
        if width > 1:
            for _ in range(accepted):
                record.saw(True)
            if accepted < drafted or not drafted:
                record.saw(False)
        record.match, record.width = told.match, width
        record.owed -= accepted
        record.tokens += accepted + 1

    def _expected(self, record: Record) -> tuple[float, ...]:
        by_match = RIGHT_BY_MATCH[min(record.match, len(RIGHT_BY_MATCH) - 1)]
        estimate = (1.0 - _MATCH_SHARE) * record.rate + _MATCH_SHARE * by_match
        return self._runs[int(estimate * _GRID + 0.5)]

    def _relative_costs(self, batch: int) -> tuple[float, ...]:
        """Cost of a step of each width in plain steps of the same batch. Measured ones waver; a wider step
        counts as no cheaper."""
        found = self._relative.get(batch)
        if found is None:
            costs = [self._cost(batch, width) for width in self._widths]
            found = tuple(cost / costs[0] for cost in accumulate(costs, max))
            self._relative[batch] = found
        return found

    def _cost(self, batch: int, width: int) -> float:
        if self._costs is not None:
            return self._costs.at(batch, width)
        return 1.0 + self._row * (batch * width - 1)


def expected_run(right: float, width: int, depth: int) -> float:
    """Tokens that a step of `width` emits on average, when each draft is right with the same probability
    given that those before it were. Branches beyond the first count where its first token is wrong."""
    drafts = width - 1
    first = _geometric(right, min(drafts, depth))
    others = _geometric(right, min(max(drafts - depth, 0), depth))
    second = _SECOND_CHANCE * (1.0 - right) * others / right if right else 0.0
    return 1.0 + first + second


def _geometric(right: float, count: int) -> float:
    """right + right^2 + ... (count terms)."""
    return sum(right**k for k in range(1, count + 1))
