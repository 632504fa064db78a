"""Decides what the next step computes and applies what it brought; host data only.

Knows upper bounds of lengths, never a length that the device has not told yet, and nothing of tensors.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from engine.answers import Event
from engine.batch import Finish, Mode, ScheduledStep, StepResult
from engine.cache.base import PrefixCache
from engine.cache.ledger import PageLedger
from engine.errors import InternalError, UserError
from engine.metrics import EngineMetrics
from engine.policy import Policy
from engine.request import Request
from engine.scheduling.acceptance_watch import UNWATCHED, AcceptanceWatch
from engine.scheduling.admission import WaitingRoom
from engine.scheduling.gate import Gate
from engine.scheduling.growth import PageGrowth
from engine.scheduling.outputs import OutputProcessor, TextFactory
from engine.scheduling.plan import SamplingClasses, extend_step, verify_step
from engine.scheduling.reservation import Reservation
from engine.scheduling.results import ResultApplier
from engine.scheduling.roster import Roster
from engine.scheduling.tape import UNRECORDED, Tape
from speculative.width import PLAIN, WidthPolicy

MAX_IN_FLIGHT = 2  # the overlap loop launches step n + 1 before it applies n

PageEntries = list[tuple[int, int, int]]


class Scheduler:
    """Continuous batching: a deterministic function of adds, cancels and applied results.

    Prefill and decode steps are separate batches; while both have work, a decode step follows every
    `prefill_streak` prefill steps, so neither starves. Results are applied in launch order, before the next
    launch (lag 0) or after it (lag 1).
    """

    def __init__(
        self,
        policy: Policy,
        cache: PrefixCache,
        *,
        pages: int,
        max_context: int,
        widths: WidthPolicy,
        draft_slots: int,
        eos_ids: Sequence[int],
        text_stream_factory: TextFactory,
        metrics: EngineMetrics,
        alarm: AcceptanceWatch = UNWATCHED,
        tape: Tape = UNRECORDED,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """pages: usable ones, 1..pages (page 0 is padding). widths: chooses the tokens of a decode step.
        draft_slots: KV slots past the bound that a chain draft writes. alarm: is shown what became of drafts.
        tape: hears what happens. Rows must hold max_context + the widest step + the larger of the two.
        """
        self.config = policy.config
        self.metrics = metrics
        self.ledger = PageLedger(pages, cache)
        self._widths = widths
        self._tape = tape
        self._classes = SamplingClasses()
        reservation = Reservation(widths.widest, draft_slots)
        pool = pages * cache.page_size
        self._gate = Gate(reservation, self._classes, max_context, pool, tuple(eos_ids))
        self._growth = PageGrowth(self.ledger, reservation)
        room = WaitingRoom(policy, self.ledger, reservation)
        self._roster = Roster(room, self.ledger, self.config.max_running, metrics, tape)
        self._outputs = OutputProcessor(text_stream_factory)
        self._results = ResultApplier(self._roster, self.ledger, self._outputs, metrics, widths, alarm, clock)
        self._in_flight: deque[tuple[ScheduledStep, Sequence[Request]]] = deque()
        self._arrivals = 0
        self._step_id = 0  # of the last launched step
        self._streak = 0  # prefill steps since the last decode step

    def add(self, request: Request) -> None:
        """Queue a request. UserError, with nothing of it kept, if it can never run or the queue is full."""
        limit, waiting = self.config.max_waiting, len(self._roster.room)
        if limit and waiting >= limit:
            raise UserError(
                f"{waiting} requests are waiting already, scheduler.max_waiting={limit}: send it later, "
                "or raise scheduler.max_waiting"
            )
        if self._roster.knows(request.id, request.index):
            raise UserError(f"a request with the id {request.id!r} is running already: choose another id")
        self._gate.size(request)
        self._outputs.open(request)
        self._arrivals += 1
        request.arrival = self._arrivals
        request.drafting = self._widths.open()
        self._roster.arrive(request)

    @property
    def position(self) -> tuple[int, int]:
        """(steps launched, steps whose results were applied): the place of what happens now in a run."""
        return self._step_id, self._roster.applied

    def cancel(self, request_id: str) -> bool:
        """End every unfinished sample of a request; False if there is none. News: see take_events."""
        samples = self._roster.samples(request_id)
        for request in samples:
            self._results.end(request, Finish.CANCELLED)
        return bool(samples)

    def take_events(self) -> list[Event]:
        """News since the last call; `apply` returns them too."""
        events, self._results.events = self._results.events, []
        return events

    def drop_events(self, request_id: str) -> None:
        """Forget the news of a request that was refused."""
        self._results.events = [event for event in self._results.events if event.request_id != request_id]

    def has_work(self) -> bool:
        """Whether a request is unfinished or a step in flight."""
        return bool(self._in_flight) or self._roster.has_work()

    def forget_prefixes(self) -> int:
        """Empty the prefix cache of all that no running request uses; returns the pages freed."""
        return self.ledger.forget()

    def check(self) -> None:
        """The accounting invariant: free + cached + reserved == total, every page and row with one owner.

        Walks everything: for tests and debug runs. Raises InternalError with what each request holds.
        """
        self._roster.check()

    def schedule(self) -> ScheduledStep | None:
        """The next step, to be launched by the caller; None if nothing can be before a result is applied."""
        if len(self._in_flight) >= MAX_IN_FLIGHT:
            raise InternalError(f"{MAX_IN_FLIGHT} steps are in flight: apply the oldest first")
        if self._streak < self.config.prefill_streak or not self._roster.decoding:
            step = self._extend() or self._verify()
        else:
            step = self._verify() or self._extend()
        if step is None and not self._in_flight and self._roster.has_work():
            raise InternalError(f"stuck: no step can be planned; running: {self._roster.admitted}")
        return step

    def apply(self, step: ScheduledStep, result: StepResult) -> list[Event]:
        """Take a step's results, in launch order; returns the news."""
        if not self._in_flight or not self._in_flight[0][0].step_id == step.step_id == result.step_id:
            raise InternalError(f"the result of step {result.step_id} was applied out of order")
        _, requests = self._in_flight.popleft()
        self._roster.applied = step.step_id
        if step.mode is Mode.EXTEND:
            self._results.chunks(step, result, requests)
        else:
            self._results.runs(step, result, requests)
        self._roster.pass_fence()
        self.metrics.evicted_pages = self.ledger.evicted
        return self.take_events()

    def _verify(self) -> ScheduledStep | None:
        """A decode step of all who are not sure to end with the step in flight."""
        ready = [r for r in self._roster.decoding if r.at_least < r.max_len]
        pages: PageEntries = []
        short = self._growth.short(ready)
        if short:
            pages, ready = self._grow(short, ready)
        if not ready:
            return None
        drafted = [r.drafting for r in ready if r.params.speculative]
        choice = self._widths.choose(drafted, len(ready) - len(drafted)) if drafted else PLAIN
        step = verify_step(self._step_id + 1, ready, choice, pages, self._classes)
        self._launch(step, ready)
        self._streak = 0
        width, step_id = step.width, self._step_id
        for request in ready:
            request.bound += width
            request.at_least += 1
            request.last_step = step_id
        return step

    def _grow(self, short: list[Request], ready: list[Request]) -> tuple[PageEntries, list[Request]]:
        """(page entries, who of `ready` can run): evicts, then retracts, where pages are short."""
        roster = self._roster
        if sum(map(self._growth.missing, short)) > self.ledger.available:
            short = self._growth.relieve(short, roster.admitted, roster.leaving, roster.retract)
            ready = [r for r in ready if r in roster.decoding]
        pages, out = self._growth.grow(short)
        return pages, [r for r in ready if r not in out] if out else ready

    def _extend(self) -> ScheduledStep | None:
        """A prefill step: goes on with prompts that were begun, then begins as many as fit."""
        budget = self.config.chunk_tokens
        chunks: list[tuple[Request, int]] = []
        for request in self._roster.prefilling:
            budget -= _add_chunk(chunks, request, budget)
        new = self._admit(budget)
        for request in new:
            budget -= _add_chunk(chunks, request, budget)
        if not chunks:
            return None
        step = extend_step(self._step_id + 1, chunks, new, self._classes)
        self._launch(step, [request for request, _ in chunks])
        self._streak += 1
        for (request, count), emits in zip(chunks, step.emits, strict=True):
            request.bound += count
            request.last_step = self._step_id
            if emits:
                request.at_least += 1
                self._roster.begin_decoding(request)
                self._widths.prefilled(request.drafting)
        return step

    def _admit(self, budget: int) -> list[Request]:
        """Requests that begin in this step; each gets a row and owns its pages."""
        roster = self._roster
        if not budget or not roster.free_rows or not len(roster.room):
            return []
        new = roster.room.admit(roster.admitted, roster.free_rows, budget, self._step_id)
        for request in new:
            roster.start(request)
            if request.cached_tokens < 0:  # after a retraction nothing is prompt or cached again
                request.cached_tokens = request.bound
                self.metrics.prompt_tokens += request.prompt_len
                self.metrics.cached_tokens += request.bound
        return new

    def _launch(self, step: ScheduledStep, requests: Sequence[Request]) -> None:
        self._step_id = step.step_id
        self._tape.launched(step, requests)
        self._in_flight.append((step, requests))
        self.metrics.launched(step.mode, len(requests), step.width)


def _add_chunk(chunks: list[tuple[Request, int]], request: Request, budget: int) -> int:
    """Take what `budget` allows of a request's prompt; returns how many tokens."""
    count = min(budget, request.prefill_end - request.bound)
    if count:
        chunks.append((request, count))
    return count
