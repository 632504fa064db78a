"""The waiting room: which waiting request may start now, without anybody running having to yield soon.

Knows the policy's order and the ledger's pages; nothing of steps or results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from engine.cache.ledger import PageLedger
from engine.cache.radix import common_pages
from engine.policy import Policy
from engine.request import Request, State
from engine.scheduling.reservation import Reservation

HELD_LIMIT = 32  # requests that are passed over in one look because their prefix is being computed


class WaitingRoom:
    """Waiting requests, those that were retracted before all others.

    Two rules besides the policy's order: the first one that does not fit blocks those behind it, so that a
    large request cannot starve; and a request at least half of whose work a running prefill is about to
    put into the cache waits for that (samples of one prompt, say) while others pass.
    """

    def __init__(self, policy: Policy, ledger: PageLedger, reservation: Reservation) -> None:
        self._policy = policy
        self._ledger = ledger
        self._reservation = reservation
        self._headroom = policy.config.headroom
        self._arrived: dict[Request, None] = {}
        self._returned: list[Request] = []
        self._blocked = False

    def __len__(self) -> int:
        return len(self._arrived) + len(self._returned)

    def add(self, request: Request, step_id: int) -> None:
        """Queue a new request."""
        self._enter(request, step_id)
        self._arrived[request] = None

    def put_back(self, request: Request, step_id: int) -> None:
        """Queue a retracted request in front, in order of arrival among its like."""
        self._enter(request, step_id)
        self._returned.append(request)
        self._returned.sort(key=lambda r: r.arrival)

    def discard(self, request: Request) -> None:
        """Forget a cancelled request."""
        self._remove(request)
        self._blocked = False

    def unblock(self) -> None:
        """Something was released: what did not fit may fit now."""
        self._blocked = False

    def admit(self, running: Iterable[Request], limit: int, tokens: int, step_id: int) -> list[Request]:
        """Up to `limit` requests that now own their pages, enough to fill `tokens` tokens of prefill."""
        if self._blocked or not limit or tokens <= 0 or not len(self):
            return []
        running = list(running)
        spare = sum(self._growth(r) for r in running)
        admitted: list[Request] = []
        for request in self._candidates(running, admitted, step_id):
            if not self._fits(request, spare):
                self._blocked = True
                break
            admitted.append(request)
            spare += self._growth(request)
            tokens -= request.known - request.shared_pages * self._ledger.page_size
            if tokens <= 0 or len(admitted) == limit:
                break
        for request in admitted:
            self._remove(request)
        return admitted

    def _remove(self, request: Request) -> None:
        if request in self._arrived:
            del self._arrived[request]
        else:
            self._returned.remove(request)

    def _enter(self, request: Request, step_id: int) -> None:
        request.leave_table()
        request.state = State.WAITING
        request.waiting_since = step_id
        request.cache_key = self._ledger.cache.key(request.known_ids(), request.known - 1)
        self._blocked = False

    def _candidates(self, running: list[Request], admitted: list[Request], step_id: int) -> Iterator[Request]:
        """In the order to try; `admitted` grows meanwhile."""
        held = 0
        arrived = self._policy.order(self._arrived, self._ledger.cache, step_id)
        computing = [r for r in running if r.kv_committed < r.prefill_end]
        for request in chain(self._returned, arrived):
            if not self._is_being_computed(request, computing, admitted):
                yield request
            elif (held := held + 1) == HELD_LIMIT:
                return

    def _is_being_computed(self, request: Request, computing: list[Request], admitted: list[Request]) -> bool:
        """Whether a prefill under way will soon save at least half of what the request has to compute."""
        ledger, cache = self._ledger, self._ledger.cache
        key, unit = request.cache_key, cache.unit
        if not key or not (computing or admitted):
            return False
        likely = [r.cache_key for r in chain(computing, admitted) if r.cache_key[:unit] == key[:unit]]
        best = max((common_pages(other, key, unit) for other in likely), default=0)
        if not best:
            return False
        cached = cache.peek(key)
        work = request.known - cached * ledger.page_size
        return 2 * (best - cached) * ledger.page_size >= work

    def _fits(self, request: Request, spare: int) -> bool:
        """Take pages for the request's prefill and first decode step, if `spare` pages and its own headroom
        are left over."""
        tokens = self._reservation.admission(request)
        later = self._reservation.ahead(request, self._headroom)
        own = max(0, self._ledger.pages(later) - self._ledger.pages(tokens))
        return self._ledger.admit(request, tokens, spare + own)

    def _growth(self, request: Request) -> int:
        """Pages that a running request may ask for within the headroom."""
        target = self._ledger.pages(self._reservation.ahead(request, self._headroom))
        return max(0, target - len(request.pages))
