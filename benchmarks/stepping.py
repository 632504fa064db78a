"""Times steps of an engine from outside: decode steps in steady state, prompts to their first token.

Prompts are random ids, ends are ignored: what is measured is the engine, not the text. Knows no ceiling.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from engine import LLM, SamplingParams
from engine.errors import InternalError, UserError
from engine.metrics import difference, rates

WARM = 8  # decode steps before the clock runs: caches fill, late captures happen
WINDOWS = 5  # each figure is their median
STEPS = 24  # a window
IDLE = 64  # turns in a row without a launch: nothing will come of it
_WAY_OUT = "raise scheduler.max_running or cache.tokens, or measure a smaller batch or context"


@dataclass(frozen=True)
class Decoded:
    """seconds: of a decode step. spread: largest window over smallest. tokens: emitted a step. waits,
    pressed: host waits and back-pressure waits a step. eager: share of steps outside a graph. occupancy:
    share of the time in which the device executed the step; None where nobody measured. compiled: kernels
    that were compiled since the requests came, their prompts included."""

    seconds: float
    spread: float
    tokens: float
    waits: float
    pressed: float
    eager: float
    occupancy: float | None
    compiled: int

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


def prompts_of(vocab: int, count: int, length: int, seed: int = 0) -> list[list[int]]:
    """Seeded random ids; no two prompts alike, so that no prefix is shared."""
    draw = random.Random(seed * 1_000_003 + length)
    return [[draw.randrange(3, vocab) for _ in range(length)] for _ in range(count)]


def decode(llm: LLM, batch: int, context: int) -> Decoded:
    """`batch` requests decode at about `context` tokens each, in the middle of the measurement."""
    compiled = llm.metrics.compiled_kernels
    with steady(llm, batch, context) as go:
        windows, before = [], llm.metrics.snapshot()
        for _ in range(WINDOWS):
            start = time.perf_counter()
            go(STEPS)
            windows.append((time.perf_counter() - start) / STEPS)
        counts = difference(before, llm.metrics.snapshot())
    steps = counts["decode_steps"]
    return Decoded(
        statistics.median(windows),
        max(windows) / min(windows),
        counts["decode_tokens"] / steps,
        counts["host_waits"] / steps,
        counts["back_pressure_waits"] / steps,
        counts["eager_decode_steps"] / steps,
        rates(counts).get("forward_occupancy"),
        llm.metrics.compiled_kernels - compiled,
    )


@contextmanager
def steady(llm: LLM, batch: int, context: int) -> Iterator[Callable[[int], None]]:
    """`batch` requests that decode, all of them in every step, warmed up; the value runs a number of decode
    steps, WINDOWS * STEPS at most in all. At the end the requests are cancelled, their late step has passed.

    UserError where they cannot run side by side, or where one ends too early.
    """
    made = WARM + WINDOWS * STEPS
    each = llm.spec.longest_run if llm.spec.simulated is None else llm.spec.simulated  # tokens of a step
    prompt = max(8, context - int(each * made) // 2)
    # Those who begin first may decode while the others' prompts are computed.
    chunks = batch * (1 + prompt // llm._scheduler.config.chunk_tokens)
    longest = llm.spec.longest_run * (made + 16 + chunks)
    params = SamplingParams(max_tokens=min(longest, llm.max_context - prompt), ignore_eos=True)
    turns = Turns(llm, batch)
    ids = [llm.add(own, params) for own in prompts_of(llm.shape.vocab_size, batch, prompt)]
    try:
        turns.until_all_decode()
        turns.decode(WARM)
        yield turns.decode
    finally:
        _end(llm, ids)


class Turns:
    """Turns of an engine in which `batch` requests decode; ends with an error where they do not get on."""

    def __init__(self, llm: LLM, batch: int) -> None:
        self._llm = llm
        self._batch = batch
        self._ended = llm.metrics.finished_requests
        self._idle = 0  # turns in a row that launched nothing

    def until_all_decode(self) -> None:
        """Until all prompts are computed: two decode steps in a row that carried every request."""
        full = 0
        while full < 2:
            full = full + 1 if self._turn() == self._batch else 0

    def decode(self, count: int) -> None:
        """`count` decode steps of the whole batch."""
        while count:
            rows = self._turn()
            if rows not in (0, self._batch):
                raise UserError(f"a decode step carried {rows} of {self._batch} requests: {_WAY_OUT}")
            count -= rows > 0

    def _turn(self) -> int:
        """One turn; how many requests the decode step carries that it launched, 0 for none."""
        metrics = self._llm.metrics
        rows, steps = metrics.decode_rows, metrics.decode_steps + metrics.extend_steps
        self._llm.step()
        self._idle = self._idle + 1 if metrics.decode_steps + metrics.extend_steps == steps else 0
        if metrics.finished_requests > self._ended:
            raise UserError(f"a request ended before {self._batch} of them had decoded enough: {_WAY_OUT}")
        if self._idle > IDLE:
            raise UserError(f"nothing was launched in {IDLE} turns, with {self._batch} requests: {_WAY_OUT}")
        return metrics.decode_rows - rows


def _end(llm: LLM, ids: Sequence[str]) -> None:
    """Cancel the requests, take their outputs, let the late step pass."""
    for request in ids:
        llm.cancel(request)
    left = list(ids)
    for _ in range(IDLE):
        left = [request for request in left if llm.output(request) is None]
        if not left and not llm.has_work():
            return
        llm.step()
    raise InternalError(f"{len(left)} cancelled requests have not ended in {IDLE} turns")


def first_tokens(engines: Sequence[LLM], length: int, repeats: int) -> list[list[float]]:
    """Seconds from a prompt of `length` tokens to its first token, alone in each of the engines, which take
    turns; the first two of each warm it up and are not among them."""
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    times: list[list[float]] = [[] for _ in engines]
    for number in range(repeats + 2):
        for llm, own in zip(engines, times, strict=True):
            prompt = prompts_of(llm.shape.vocab_size, 1, length, seed=number + 1)
            start = time.perf_counter()
            llm.generate(prompt, params)
            own.append(time.perf_counter() - start)
    return [own[2:] for own in times]
