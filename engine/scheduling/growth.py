"""Pages for decoding requests before a launch, and who yields when there are not enough.

Knows the ledger and the lengths; nothing of results, rows or the waiting room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from engine.cache.ledger import PageLedger
from engine.request import Request
from engine.scheduling.reservation import Reservation

Retract = Callable[[Request], bool]


class PageGrowth:
    """Grows requests to bound + need; retracts the latest arrived when free and evictable pages run out.

    The oldest request is never retracted, and it fits the pool alone, so something always finishes. What a
    retracted or ending request with a step in flight holds arrives one step later: until then whoever lacks
    pages sits out, and nobody else is retracted for it.
    """

    def __init__(self, ledger: PageLedger, reservation: Reservation) -> None:
        self._ledger = ledger
        self._reservation = reservation

    def short(self, requests: Iterable[Request]) -> list[Request]:
        """Those that do not own pages for their next decode step."""
        size, need = self._ledger.page_size, self._reservation.need
        return [r for r in requests if r.bound + need > len(r.pages) * size]

    def missing(self, request: Request) -> int:
        """Pages it lacks for its next decode step."""
        return self._ledger.pages(request.bound + self._reservation.need) - len(request.pages)

    def relieve(
        self,
        short: Sequence[Request],
        active: Iterable[Request],
        leaving: Iterable[Request],
        retract: Retract,
    ) -> list[Request]:
        """Retract until what `short` lacks is available or about to be; returns who of `short` is left.

        active: admitted requests. leaving: requests that wait for the fence. retract(request) tells whether
        it has left at once.
        """
        lacking = {request: self.missing(request) for request in short}
        soon = sum(self._ledger.own(r) for r in leaving)
        candidates = []
        for request in sorted(active, key=lambda r: r.arrival):
            if request.at_least >= request.max_len:  # ends with the step in flight
                soon += self._ledger.own(request)
            else:
                candidates.append(request)
        while len(candidates) > 1 and sum(lacking.values()) > self._ledger.available + soon:
            victim = candidates.pop()
            lacking.pop(victim, None)
            own = self._ledger.own(victim)
            soon += 0 if retract(victim) else own
        return list(lacking)

    def grow(self, short: Iterable[Request]) -> tuple[list[tuple[int, int, int]], set[Request]]:
        """Give pages in order of arrival: (entries for the page table, those that must sit out this step)."""
        entries: list[tuple[int, int, int]] = []
        out: set[Request] = set()
        for request in sorted(short, key=lambda r: r.arrival):
            if self.missing(request) > self._ledger.available:
                out.add(request)
                continue
            first = len(request.pages)
            new = self._ledger.grow(request, request.bound + self._reservation.need)
            entries += [(request.row, first + i, page) for i, page in enumerate(new)]
        return entries, out
