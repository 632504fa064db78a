"""The scheduler's own share of a decode step stays small: schedule and apply, without any device."""

from __future__ import annotations

import random
import time

import pytest
from hash_model import letters
from scheduler_rig import Rig

from engine.batch import Mode, StepResult
from engine.params import SamplingParams
from engine.request import Request

STEPS = 150


def step_milliseconds(batch: int, width: int) -> float:
    """The quickest of several windows' means, since the machine may be busy with something else."""
    longest = 40 + STEPS * width
    rig = Rig(page_size=16, pages=batch * longest, max_context=longest, width=width, max_running=batch)
    for i in range(batch):
        rig.scheduler.add(long_request(i, STEPS * width))
    previous, spent, tokens = None, [], [[97] * width] * batch
    for _ in range(STEPS):
        start = time.perf_counter()
        step = rig.scheduler.schedule()
        middle = time.perf_counter()
        if previous is not None:
            emitted = [run if emits else [] for run, emits in zip(tokens, previous.emits, strict=True)]
            if previous.mode is Mode.EXTEND:
                emitted = [run[:1] for run in emitted]
            zeros = [0] * len(emitted)
            result = StepResult(previous.step_id, [list(run) for run in emitted], zeros, zeros, zeros, zeros)
            again = time.perf_counter()
            rig.scheduler.apply(previous, result)
            if previous.mode is Mode.VERIFY:
                spent.append(middle - start + time.perf_counter() - again)
        previous = step
    windows = [spent[i : i + 10] for i in range(0, len(spent) - 10, 10)]
    return 1e3 * min(sum(w) / len(w) for w in windows)


def long_request(index: int, max_tokens: int) -> Request:
    return Request(f"r{index}", letters(random.Random(index), 30), SamplingParams(max_tokens=max_tokens))


@pytest.mark.parametrize(("batch", "limit"), [(1, 0.08), (32, 0.25), (64, 0.45)])
@pytest.mark.parametrize("width", [1, 4])
def test_decode_step(batch: int, limit: float, width: int) -> None:
    assert step_milliseconds(batch, width) < limit
