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
from functools import partial

from engine import LLM, SamplingParams
from engine.metrics import difference, rates

WARM = 8  # decode steps before the clock runs: caches fill, late captures happen
WINDOWS = 5  # each figure is their median
STEPS = 24  # a window


@dataclass(frozen=True)
class Decoded:
    """seconds: of a decode step. spread: largest window over smallest. tokens: emitted a step. waits,
    pressed: host waits and back-pressure waits a step. eager: share of steps outside a graph. occupancy:
    share of the time in which the device executed the step; None where nobody measured."""

    seconds: float
    spread: float
    tokens: float
    waits: float
    pressed: float
    eager: float
    occupancy: float | None

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
    )


@contextmanager
def steady(llm: LLM, batch: int, context: int) -> Iterator[Callable[[int], None]]:
    """`batch` requests that decode, warmed up; the value runs a number of decode steps, WINDOWS * STEPS at
    most in all. At the end the requests are cancelled and their late step has passed."""
    made = WARM + WINDOWS * STEPS
    longest = llm.spec.longest_run * (made + 16)
    prompt = max(8, context - llm.spec.longest_run * made // 2)
    params = SamplingParams(max_tokens=longest, ignore_eos=True)
    ids = [llm.add(own, params) for own in prompts_of(llm.shape.vocab_size, batch, prompt)]
    try:
        _until_decoding(llm)
        _steps(llm, WARM)
        yield partial(_steps, llm)
    finally:
        _end(llm, ids)


def _end(llm: LLM, ids: Sequence[str]) -> None:
    """Cancel the requests, take their outputs, let the late step pass."""
    for request in ids:
        llm.cancel(request)
    left = list(ids)
    while left:
        llm.step()
        left = [request for request in left if llm.output(request) is None]
    while llm.has_work():
        llm.step()


def _until_decoding(llm: LLM) -> None:
    """All prompts are computed: two decode steps in a row without a prefill between."""
    streak = 0
    while streak < 2:
        before = llm.metrics.extend_steps
        llm.step()
        streak = streak + 1 if llm.metrics.extend_steps == before else 0


def _steps(llm: LLM, count: int) -> None:
    goal = llm.metrics.decode_steps + count
    while llm.metrics.decode_steps < goal:
        llm.step()


def first_token(llm: LLM, length: int, repeats: int) -> list[float]:
    """Seconds from a prompt of `length` tokens to its first token, alone in the engine; the first run warms
    up and is not among them."""
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    times = []
    for number in range(repeats + 2):
        prompt = prompts_of(llm.shape.vocab_size, 1, length, seed=number + 1)
        start = time.perf_counter()
        llm.generate(prompt, params)
        times.append(time.perf_counter() - start)
    return times[2:]
