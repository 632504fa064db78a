"""Width by expected speed: what each request's drafts are worth, against what a step costs.

Host data only, a deterministic function of results. Knows measured costs and no drafter: whoever drafts says
which widths it can do. Legend: b requests of a step, w its width, j depth of a draft (0: the first).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from speculative.budget import LossBudget
from speculative.rates import DecayedRates, conditional
from speculative.width import StepCosts, WidthChoice, WidthPolicy

WARM_TOKENS = 64  # a draft model catches up with a pause of so many tokens; after a longer one it is cold
TURN_ON = 1.05  # expected speed-up that begins drafting
TURN_OFF = 1.0  # and that ends it
SWITCH = 1.03  # gain over the width in use that another must promise
FIRST_GAP, LAST_GAP = 8, WARM_TOKENS - 1  # plain steps before a probe; doubled when it finds nothing new
OWN_DECAY, SHARED_DECAY = 0.93, 0.995  # of a request's results, of everybody's
OWN_WEIGHT, SHARED_WEIGHT = 4.0, 20.0  # results that the prior counts as
NEUTRAL = 0.6  # acceptance of each draft given the ones before it, where no card says otherwise


class DraftRecord:
    """One request. runs: expected tokens of a step at each width of the policy. paused: tokens decoded
    without drafts since its draft model saw one. cold: too many of them. barren: it got no drafts where
    others did. shares: plain seconds a token, of its launched steps with drafts."""

    __slots__ = ("barren", "paused", "rates", "runs", "shares")

    def __init__(self, rates: DecayedRates, runs: tuple[float, ...]) -> None:
        self.rates = rates
        self.runs = runs
        self.paused = 0
        self.barren = False
        self.shares: deque[float] = deque()

    @property
    def cold(self) -> bool:
        return self.paused > WARM_TOKENS

    @property
    def live(self) -> bool:
        """Whether drafts for it can be accepted at all."""
        return not self.barren and not self.cold


@dataclass(frozen=True)
class Offer:
    """A width with drafts. speedup: expected, over plain decoding; at_most: if every draft were accepted.
    charge: seconds more than a plain step."""

    width: int
    speedup: float
    at_most: float
    charge: float


class AdaptiveWidth(WidthPolicy):
    """Takes the width with the most expected tokens a second, 1 among them.

    Expected tokens come from the acceptance at each depth, given that the draft before was accepted: decayed
    counts of the request over those of all requests, over the card of the draft. A LossBudget bounds what
    being wrong may cost. While no width pays, one step with drafts is tried after FIRST_GAP plain ones, then
    after twice as many, up to LAST_GAP, which no draft model is cold after.
    """

    def __init__(
        self, depths: Mapping[int, int], costs: StepCosts, expected: Sequence[float] | None = None
    ) -> None:
        """depths: width -> drafts on the longest path, for the widths above 1 that can be chosen; `costs`
        holds all of them. expected: share of steps in which the draft at each depth is accepted (a card)."""
        self.widest = max(depths)
        self._widths = tuple(sorted(depths))
        self._depths = depths
        self._costs = costs
        deepest = max(depths.values())
        self._card = conditional(expected, deepest) if expected else (NEUTRAL,) * deepest
        self._shared = DecayedRates(deepest, SHARED_DECAY)
        self._prior = self._card
        self._prices: dict[int, tuple[float, float, tuple[float, ...]]] = {}
        self._budget = LossBudget()
        self._width = 1  # of the last step
        self._gap, self._since = FIRST_GAP, 0  # plain steps until the next probe, and since the last drafts
        self._hoped: float | None = None  # expected speed-up when a probe was launched
        self._heard = False  # whether results of drafts came in since

    def open(self) -> DraftRecord:
        rates = DecayedRates(len(self._card), OWN_DECAY)
        return DraftRecord(rates, self._runs(self._prior))

    def prefilled(self, record: object) -> None:
        mine = cast(DraftRecord, record)
        mine.paused = 0
        mine.barren = False
        self._refresh(mine)

    def choose(self, records: Sequence[object], declined: int = 0) -> WidthChoice:
        mine = cast(Sequence[DraftRecord], records)
        batch = len(mine) + declined
        plain, resume, charges = self._price(batch)
        back = resume if any(r.paused and not r.cold for r in mine) else 0.0
        self._prior = self._shared.rates(self._card, SHARED_WEIGHT)
        offers = self._offers(mine, batch, plain, charges, back)
        self._budget.plain(plain, min(offer.charge for offer in offers))
        self._judge_probe(max(offer.speedup for offer in offers))
        offer = self._pick([o for o in offers if self._budget.affords(o.charge)])
        if offer is None:
            return self._without(mine)
        self._budget.charge(offer.charge)
        return self._with(offer.width, mine, plain / batch)

    def learn(self, record: object, width: int, drafted: int, accepted: int, signal: int) -> None:
        if width == 1:
            return
        mine = cast(DraftRecord, record)
        share = mine.shares.popleft()
        mine.barren = not drafted
        if drafted:
            depth = self._depths[width]
            mine.rates.learn(accepted, depth)
            self._shared.learn(accepted, depth)
            self._heard = True
            self._budget.credit(accepted * share)
        self._refresh(mine)

    def _price(self, batch: int) -> tuple[float, float, tuple[float, ...]]:
        """(seconds of a plain step, of coming back, more than plain of each width)."""
        found = self._prices.get(batch)
        if found is None:
            plain = self._costs.at(batch, 1)
            more = tuple(max(0.0, self._costs.at(batch, w) - plain) for w in self._widths)
            found = self._prices[batch] = (plain, self._costs.resume_at(batch), more)
        return found

    def _offers(
        self, records: Sequence[DraftRecord], batch: int, plain: float, charges: Sequence[float], back: float
    ) -> list[Offer]:
        live = [r.runs for r in records if r.live]
        idle = batch - len(live)
        offers = []
        for i, (width, charge) in enumerate(zip(self._widths, charges, strict=True)):
            tokens = (idle + sum(runs[i] for runs in live)) / batch
            most = (idle + len(live) * (self._depths[width] + 1)) / batch
            cheaper = plain / (plain + charge)
            offers.append(Offer(width, tokens * cheaper, most * cheaper, charge + back))
        return offers

    def _pick(self, offers: Sequence[Offer]) -> Offer | None:
        """The best of the affordable offers, or a probe; None for a step without drafts."""
        best = max(offers, key=lambda offer: offer.speedup, default=None)
        if best is None:
            return None
        if best.speedup >= (TURN_OFF if self._width > 1 else TURN_ON):
            kept = next((o for o in offers if o.width == self._width), None)
            return kept if kept is not None and best.speedup < kept.speedup * SWITCH else best
        if self._since < self._gap or max(offer.at_most for offer in offers) < TURN_ON:
            return None
        self._hoped, self._heard = best.speedup, False
        return best

    def _judge_probe(self, speedup: float) -> None:
        """A probe that raised the expectation is soon followed by another; one that did not, later."""
        if self._hoped is None or not self._heard:
            return
        self._gap = FIRST_GAP // 4 if speedup > self._hoped else min(2 * max(self._gap, 4), LAST_GAP)
        self._hoped = None

    def _without(self, records: Sequence[DraftRecord]) -> WidthChoice:
        self._width = 1
        self._since += 1
        for record in records:
            record.paused += 1
        return WidthChoice(1)

    def _with(self, width: int, records: Sequence[DraftRecord], share: float) -> WidthChoice:
        self._width, self._since = width, 0
        resume = False
        for record in records:
            record.shares.append(share)
            if record.paused and not record.cold:
                record.paused, resume = 0, True
        return WidthChoice(width, resume)

    def _refresh(self, record: DraftRecord) -> None:
        record.runs = self._runs(record.rates.rates(self._prior, OWN_WEIGHT))

    def _runs(self, rates: Sequence[float]) -> tuple[float, ...]:
        """Expected tokens of a step at each width: 1 + sum over depths of the product of the rates."""
        lengths, reached, total = [1.0], 1.0, 1.0
        for rate in rates:
            reached *= rate
            total += reached
            lengths.append(total)
        return tuple(lengths[self._depths[width]] for width in self._widths)
