"""What drafting may lose against plain decoding: an account in seconds that is never overdrawn.

Host arithmetic on measured costs. Knows no drafter, no request and no tensor.
"""

from __future__ import annotations

SHARE = 0.01  # of plain decoding's time, earned by every token whatever came of its drafts
GRACE = 6.0  # plain steps that an engine may spend on finding out, once
CEILING = 64.0  # plain steps that gains are saved up to


class LossBudget:
    """Decides whether a step with drafts can be afforded.

    A step with drafts is charged in full when it is launched, as if every draft in it would be rejected; an
    accepted draft is credited with the plain time that its token would have taken. So, by induction over the
    steps, the balance is at most GRACE plain steps + SHARE * (plain time of the tokens so far) + (plain time
    of the tokens so far) - (time so far), and a step is launched only where that stays at or above zero:

        time <= (1 + SHARE) * plain time + GRACE plain steps

    in the seconds of the cost table, whatever is accepted. That is within 3% of plain decoding once GRACE /
    (0.03 - SHARE) = 300 plain steps are done, and within 1% in the long run.
    """

    def __init__(self) -> None:
        self.balance = 0.0
        self._opened = False

    def plain(self, seconds: float, needed: float) -> None:
        """A token for every request is launched, which takes plain decoding `seconds`. needed: the charge of
        the cheapest step with drafts; what is earned by waiting stops where that can be afforded."""
        if not self._opened:
            self._opened = True
            self.balance = GRACE * seconds
        self.balance = min(self.balance, CEILING * seconds)
        enough = max(GRACE * seconds, needed)
        if self.balance < enough:
            self.balance = min(enough, self.balance + SHARE * seconds)

    def affords(self, charge: float) -> bool:
        """Whether a step that takes `charge` seconds more than a plain one may be launched."""
        return charge <= self.balance

    def charge(self, seconds: float) -> None:
        """A step with drafts is launched."""
        self.balance -= seconds

    def credit(self, seconds: float) -> None:
        """Accepted drafts saved plain decoding `seconds`."""
        self.balance += seconds
