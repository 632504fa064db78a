"""Decides what the next step computes and applies what it brought: a deterministic function of adds, cancels, results.

Host data only. Knows bounds of lengths, never lengths that the device has not told yet, and nothing of tensors.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from engine.admission import WaitingRoom
from engine.batch import Finish, Mode, ScheduledStep, StepResult
from engine.cache.base import PrefixCache
from engine.cache.ledger import PageLedger
from engine.errors import InternalError, UserError
from engine.growth import PageGrowth
from engine.metrics import EngineMetrics
from engine.outputs import OutputProcessor, TextFactory
from engine.plan import SamplingClasses, extend_step, verify_step
from engine.policy import Policy
from engine.request import Event, Request, State
from engine.reservation import Reservation

MAX_IN_FLIGHT = 2  # the overlap loop's: step n + 1 is launched before n is applied


class Scheduler:
    """Continuous batching over `pages` KV pages (page 0, the padding, not counted) and rows 1..max_running.

    Prefill steps and decode steps are separate batches; while both have work they alternate, `prefill_streak`
    prefill steps to one decode step. Rows and pages of a request that ended are released when the last launched
    step that contains it is applied. width: tokens of a decode step. draft_slots: KV slots a chain draft writes.
    """

    def __init__(
        self,
        policy: Policy,
        cache: PrefixCache,
        *,
        pages: int,
        max_context: int,
        width: int,
        draft_slots: int,
        eos_ids: Sequence[int],
        text_stream_factory: TextFactory,
        metrics: EngineMetrics,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.config = policy.config
        self.metrics = metrics
        self.ledger = PageLedger(pages, cache)
        self._reservation = Reservation(width, draft_slots)
        self._room = WaitingRoom(policy, self.ledger, self._reservation)
        self._growth = PageGrowth(self.ledger, self._reservation)
        self._outputs = OutputProcessor(text_stream_factory)
        self._classes = SamplingClasses()
        self._max_context = max_context
        self._width = width
        self._eos_ids = tuple(eos_ids)
        self._clock = clock
        self._requests: dict[str, dict[int, Request]] = {}
        self._prefilling: dict[Request, None] = {}
        self._decoding: dict[Request, None] = {}
        self._leaving: list[Request] = []  # ended or retracted, in a step that is not applied
        self._in_flight: deque[tuple[ScheduledStep, Sequence[Request]]] = deque()
        self._rows = list(range(self.config.max_running, 0, -1))
        self._events: list[Event] = []
        self._arrivals = 0
        self._step_id = 0  # of the last launched step
        self._applied = 0  # of the last applied step
        self._streak = 0  # prefill steps since the last decode step

    # --- requests come and go -------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request. Raises UserError, and keeps nothing of it, if it can never run or the queue is full."""
        limit = self.config.max_waiting
        if limit and len(self._room) >= limit:
            raise UserError(
                f"{len(self._room)} requests are waiting, scheduler.max_waiting={limit}: "
                "send this one later, or raise scheduler.max_waiting"
            )
        if request.index in self._requests.get(request.id, ()):
            raise UserError(f"a request with the id {request.id!r} is running already: choose another id")
        self._size(request)
        self._outputs.open(request)
        self._requests.setdefault(request.id, {})[request.index] = request
        self._arrivals += 1
        request.arrival = self._arrivals
        self._room.add(request, self._step_id)

    def cancel(self, request_id: str) -> bool:
        """End every unfinished sample of a request; False if there is none. The news is in `take_events`."""
        samples = list(self._requests.get(request_id, {}).values())
        for request in samples:
            self._events.append(self._outputs.end(request, Finish.CANCELLED))
            self._depart(request)
        return bool(samples)

    def take_events(self) -> list[Event]:
        """News since the last call; `apply` returns them too."""
        events, self._events = self._events, []
        return events

    def has_work(self) -> bool:
        """Whether anything waits, runs, or is in flight."""
        return bool(self._in_flight or self._decoding or self._prefilling or len(self._room))

    def check(self) -> None:
        """The accounting invariant: free + cached + reserved == total, every page and row with one owner.

        Walks everything. Raises InternalError with what each request holds.
        """
        holders = [*self._prefilling, *self._decoding, *self._leaving]
        self.ledger.check(holders)
        rows = sorted([*self._rows, *(r.row for r in holders)])
        if rows != list(range(1, self.config.max_running + 1)):
            raise InternalError(f"rows lost or owned twice: {rows}")

    # --- planning -------------------------------------------------------------------------------------------

    def schedule(self) -> ScheduledStep | None:
        """The next step, which the caller launches; None when nothing can be launched before a result is applied."""
        if len(self._in_flight) >= MAX_IN_FLIGHT:
            raise InternalError(f"{MAX_IN_FLIGHT} steps are in flight: apply the oldest first")
        if self._streak < self.config.prefill_streak or not self._decoding:
            step = self._extend() or self._verify()
        else:
            step = self._verify() or self._extend()
        if step is None and not self._in_flight and self.has_work():
            raise InternalError(f"no step can be planned for {[*self._prefilling, *self._decoding]}")
        return step

    def _verify(self) -> ScheduledStep | None:
        ready = [r for r in self._decoding if r.at_least < r.max_len]
        pages: list[tuple[int, int, int]] = []
        short = self._growth.short(ready)
        if short:
            pages, ready = self._grow(short, ready)
        if not ready:
            return None
        step = verify_step(self._step_id + 1, ready, self._width, pages, self._classes)
        self._launch(step, ready)
        self._streak = 0
        width, step_id = self._width, self._step_id
        for request in ready:
            request.bound += width
            request.at_least += 1
            request.last_step = step_id
        return step

    def _grow(
        self, short: list[Request], ready: list[Request]
    ) -> tuple[list[tuple[int, int, int]], list[Request]]:
        """(page entries, who of `ready` can run): evicts, then retracts, where pages are short."""
        if sum(map(self._growth.missing, short)) > self.ledger.available:
            active = [*self._prefilling, *self._decoding]
            short = self._growth.relieve(short, active, self._leaving, self._retract)
            ready = [r for r in ready if r in self._decoding]
        pages, out = self._growth.grow(short)
        return pages, [r for r in ready if r not in out] if out else ready

    def _retract(self, request: Request) -> bool:
        """Take a request's place away; whether it left at once. It takes the step in flight's result first."""
        self.metrics.retractions += 1
        self._decoding.pop(request, None)
        self._prefilling.pop(request, None)
        request.state = State.RETRACTED
        return self._leave(request)

    def _extend(self) -> ScheduledStep | None:
        chunks: list[tuple[Request, int]] = []
        budget = self.config.chunk_tokens
        for request in self._prefilling:
            if not budget:
                break
            chunks.append((request, min(budget, request.prefill_end - request.bound)))
            budget -= chunks[-1][1]
        new = self._admit(budget)
        for request in new:
            chunks.append((request, min(budget, request.prefill_end - request.bound)))
            budget -= chunks[-1][1]
        if not chunks:
            return None
        step = extend_step(self._step_id + 1, chunks, new, self._classes)
        self._launch(step, [request for request, _ in chunks])
        self._streak += 1
        for (request, count), emits in zip(chunks, step.emits, strict=True):
            self._advance(request, count, emits)
        return step

    def _admit(self, budget: int) -> list[Request]:
        """Requests that begin in this step: they get a row and own their pages."""
        running = [*self._decoding, *self._prefilling]
        new = self._room.admit(running, len(self._rows), budget, self._step_id)
        for request in new:
            request.row = self._rows.pop()
            request.state = State.PREFILL
            request.kv_committed = request.bound = request.shared_pages * self.ledger.page_size
            self._prefilling[request] = None
            self._count_prompt(request)
        return new

    def _count_prompt(self, request: Request) -> None:
        """Once a request: what comes again after a retraction is neither prompt nor cached."""
        if request.cached_tokens < 0:
            request.cached_tokens = request.bound
            request.scheduled_at = self._clock()
            self.metrics.prompt_tokens += request.prompt_len
            self.metrics.cached_tokens += request.bound

    def _advance(self, request: Request, count: int, emits: bool) -> None:
        """A chunk was launched. After the last one the request decodes, its first token known to the device."""
        request.bound += count
        request.last_step = self._step_id
        if emits:
            request.at_least += 1
            request.state = State.RUNNING
            del self._prefilling[request]
            self._decoding[request] = None

    def _launch(self, step: ScheduledStep, requests: Sequence[Request]) -> None:
        self._step_id = step.step_id
        self._in_flight.append((step, requests))
        self.metrics.launched(step.mode, len(requests), drafts=max(0, step.width - 1))

    # --- results --------------------------------------------------------------------------------------------

    def apply(self, step: ScheduledStep, result: StepResult) -> list[Event]:
        """Take a step's results, in launch order; returns the news. Releases what the step was the last to touch."""
        if not self._in_flight or not self._in_flight[0][0].step_id == step.step_id == result.step_id:
            raise InternalError(f"the result of step {result.step_id} was applied out of order")
        _, requests = self._in_flight.popleft()
        self._applied = step.step_id
        if step.mode is Mode.EXTEND:
            self._apply_chunks(step, result, requests)
        else:
            self._apply_runs(step, result, requests)
        self._pass_fence()
        self.metrics.evicted_pages = self.ledger.evicted
        return self.take_events()

    def _apply_runs(self, step: ScheduledStep, result: StepResult, requests: Sequence[Request]) -> None:
        """Decode results: each request gets its run of 1..width tokens."""
        width, now = step.width, self._clock()
        rows = emitted = accepted = 0
        for i, request in enumerate(requests):
            tokens, finish = result.tokens[i], result.finish[i]
            if request.finish is not Finish.NONE:
                self.metrics.overshoot_tokens += len(tokens)
                continue
            if request.plain and not finish and tokens:
                count = len(tokens)
                request.output_ids += tokens
                request.token_times += [now] * count
            else:
                count = self._take(i, request, result, now)
            request.kv_committed += count
            request.bound += count - width
            request.at_least += count - 1
            rows += 1
            emitted += count
            accepted += min(result.accepted[i], count)
            if request.finish is not Finish.NONE:
                self._depart(request)
        self.metrics.applied(step.mode, rows, emitted, accepted)

    def _apply_chunks(self, step: ScheduledStep, result: StepResult, requests: Sequence[Request]) -> None:
        """Prefill results: KV of a chunk is written; the last one brought the first token."""
        now = self._clock()
        rows = emitted = 0
        for i, request in enumerate(requests):
            if request.finish is not Finish.NONE:
                self.metrics.overshoot_tokens += len(result.tokens[i])
                continue
            request.kv_committed += step.query_lens[i]
            rows += 1
            if step.emits[i]:
                emitted += self._take(i, request, result, now)
                self._settle(request)
        self.metrics.applied(step.mode, rows, emitted)

    def _settle(self, request: Request) -> None:
        """After a whole prefill: let others use its pages, or take it out if one token was all."""
        if request.finish is not Finish.NONE:
            self._depart(request)
        elif request.state is State.RUNNING:
            self.ledger.share(request)

    def _take(self, index: int, request: Request, result: StepResult, now: float) -> int:
        """Hand a run to the outputs; returns how many tokens are kept."""
        tokens, before = result.tokens[index], len(request.output_ids)
        if not tokens:
            raise InternalError(f"step {result.step_id} emitted nothing for {request!r}")
        logprobs = None if result.logprobs is None else result.logprobs[index]
        delta = self._outputs.take(request, tokens, result.finish[index], logprobs, now)
        if delta is not None:
            self._events.append(delta)
        return len(request.output_ids) - before

    def _depart(self, request: Request) -> None:
        """A finished request gives up its place, once no launched step touches it any more."""
        samples = self._requests[request.id]
        del samples[request.index]
        if not samples:
            del self._requests[request.id]
        self.metrics.finished_requests += 1
        state, request.state = request.state, State.FINISHED
        if state is State.WAITING:
            self._room.discard(request)
        elif state is not State.RETRACTED:  # a retracted one is leaving already
            self._decoding.pop(request, None)
            self._prefilling.pop(request, None)
            self._leave(request)

    def _leave(self, request: Request) -> bool:
        """Release now, or behind the fence; whether it was now."""
        if request.last_step > self._applied:
            self._leaving.append(request)
            return False
        self._release(request)
        return True

    def _pass_fence(self) -> None:
        passed = [r for r in self._leaving if r.last_step <= self._applied]
        if passed:
            self._leaving = [r for r in self._leaving if r.last_step > self._applied]
            for request in passed:
                self._release(request)

    def _release(self, request: Request) -> None:
        """Row and pages are free; a request that has not finished waits again, in front."""
        self.ledger.release(request)
        self._rows.append(request.row)
        self._room.unblock()
        if request.finish is Finish.NONE:
            self._room.put_back(request, self._step_id)

    def _size(self, request: Request) -> None:
        """Resolve a request's lengths; UserError where it can never fit."""
        if not request.prompt_len:
            raise UserError(f"the prompt of request {request.id!r} is empty: give at least one token")
        if request.prompt_len >= self._max_context:
            raise UserError(
                f"the prompt has {request.prompt_len} tokens, cache.max_context={self._max_context} has no place "
                "for an answer: shorten the prompt, or raise cache.max_context"
            )
        params = request.params
        request.sampling = params.row(
            request.prompt_len, self._eos_ids, request.index, request.seed, self._max_context
        )
        request.class_bit = self._classes.bit(params.sampling_class())
        request.max_len = request.sampling.max_len
        request.worst = self._reservation.worst(request.max_len)
        pool = self.ledger.total * self.ledger.page_size
        if request.worst > pool:
            raise UserError(
                f"the prompt's {request.prompt_len} tokens and up to {request.max_len - request.prompt_len} more "
                f"need {request.worst} tokens of KV, the pool has {pool}: raise cache.tokens, or lower "
                "sampling.max_tokens"
            )
