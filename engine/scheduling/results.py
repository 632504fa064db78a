"""Applies a step's results to the requests it contained: lengths, tokens, ends.

Knows nothing of what is launched next. Results of requests that ended a step earlier are dropped here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from engine.answers import Event
from engine.batch import Finish, ScheduledStep, StepResult
from engine.cache.ledger import PageLedger
from engine.errors import InternalError
from engine.metrics import EngineMetrics
from engine.request import Request, State
from engine.scheduling.acceptance_watch import AcceptanceWatch
from engine.scheduling.outputs import OutputProcessor
from engine.scheduling.roster import Roster
from engine.spec_metrics import Run
from speculative.width import WidthPolicy


class ResultApplier:
    """`events` collects the news until somebody takes it."""

    def __init__(
        self,
        roster: Roster,
        ledger: PageLedger,
        outputs: OutputProcessor,
        metrics: EngineMetrics,
        widths: WidthPolicy,
        alarm: AcceptanceWatch,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.events: list[Event] = []
        self._roster = roster
        self._ledger = ledger
        self._outputs = outputs
        self._metrics = metrics
        self._widths = widths
        self._alarm = alarm
        self._clock = clock

    def runs(self, step: ScheduledStep, result: StepResult, requests: Sequence[Request]) -> None:
        """A decode step: each request gets its run of 1..width tokens."""
        width, now, seen = step.width, self._clock(), self._metrics.runs
        rows = emitted = accepted = drafted = 0
        for i, request in enumerate(requests):
            if request.finish is not Finish.NONE:
                self._metrics.overshoot_tokens += len(result.tokens[i])
                continue
            count = self._take(i, request, result, now)
            request.kv_committed += count
            request.bound += count - width
            request.at_least += count - 1
            rows += 1
            emitted += count
            accepted += min(result.accepted[i], count)
            drafted += result.drafted[i]
            if width > 1:
                greedy = request.params.temperature == 0
                seen[Run(width, result.drafted[i], result.accepted[i], count, greedy)] += 1
            if request.params.speculative:  # the policy chose nothing for the others
                self._widths.learn(
                    request.drafting, width, result.drafted[i], result.accepted[i], result.signal[i]
                )
            if request.finish is not Finish.NONE:
                self._roster.depart(request)
        self._metrics.applied(step.mode, rows, emitted, accepted, drafted)
        if width > 1:
            self._alarm.check(seen)

    def chunks(self, step: ScheduledStep, result: StepResult, requests: Sequence[Request]) -> None:
        """A prefill step: the KV of each chunk is written; a request's last one brought its next token."""
        now = self._clock()
        rows = emitted = 0
        for i, request in enumerate(requests):
            if request.finish is not Finish.NONE:
                self._metrics.overshoot_tokens += len(result.tokens[i])
                continue
            request.kv_committed += step.query_lens[i]
            rows += 1
            if step.emits[i]:
                emitted += self._take(i, request, result, now)
                self._settle(request)
        self._metrics.applied(step.mode, rows, emitted)

    def end(self, request: Request, finish: Finish) -> None:
        """Finish a request from outside, whatever stage it is in."""
        self.events.append(self._outputs.end(request, finish))
        self._roster.depart(request)

    def _settle(self, request: Request) -> None:
        """After a whole prefill: let others use its pages, or take it out if that token was its last."""
        if request.finish is not Finish.NONE:
            self._roster.depart(request)
        elif request.state is State.RUNNING:
            self._ledger.share(request)

    def _take(self, index: int, request: Request, result: StepResult, now: float) -> int:
        """Append a run to its request; returns how many of its tokens are kept."""
        tokens, finish = result.tokens[index], result.finish[index]
        if not tokens:
            raise InternalError(f"step {result.step_id} emitted nothing for {request!r}")
        if request.plain and not finish:
            request.output_ids += tokens
            request.token_times += [now] * len(tokens)
            return len(tokens)
        before = len(request.output_ids)
        logprobs = None if result.logprobs is None else result.logprobs[index]
        delta = self._outputs.take(request, tokens, finish, logprobs, now)
        if delta is not None:
            self.events.append(delta)
        return len(request.output_ids) - before
