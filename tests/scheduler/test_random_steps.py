"""Random work on tiny pools: accounting holds after every step, and no output depends on scheduling."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hash_model import letters
from scheduler_rig import Rig

STEPS = 210  # per case: 48 cases make 10,080

CASES = list(itertools.product((1, 4), (1, 16, 64), (0, 1), ("fcfs", "longest_prefix"), ("radix", "none")))


def random_request(rig: Rig, rng: random.Random, bases: list[list[int]], longest: int) -> None:
    params: dict[str, Any] = {"max_tokens": rng.randint(1, longest // 2)}
    if rng.random() < 0.3:
        params["stop_token_ids"] = (rng.choice(range(97, 105)),)
    if rng.random() < 0.3:
        params["stop"] = tuple(bytes(letters(rng, 2)).decode() for _ in range(2))
    if rng.random() < 0.3:
        params["logprobs"] = 1
    base = rng.choice(bases)
    prompt = base[: rng.randint(0, longest // 2 - 5)] + letters(rng, rng.randint(1, 5))
    rig.submit(prompt, listener=rng.random() < 0.3, **params)


@pytest.mark.parametrize(("width", "page_size", "lag", "policy", "cache"), CASES)
def test_random_work(width: int, page_size: int, lag: int, policy: str, cache: str) -> None:
    seed = CASES.index((width, page_size, lag, policy, cache))
    rng = random.Random(seed)
    longest = 60
    worst = longest + 3 * width
    rig = Rig(
        page_size=page_size,
        pages=-(-worst // page_size) * 3,
        max_context=longest,
        width=width,
        draft_slots=rng.choice((0, width + 2)),
        lag=lag,
        cache=cache,
        policy=policy,
        drafter=("right", "wrong", "random")[seed % 3],
        successor_keys=rng.random() < 0.5,
        seed=seed,
        max_running=rng.randint(2, 9),
        chunk_tokens=rng.choice((5, 16, 64)),
        prefill_streak=rng.randint(1, 3),
        headroom=rng.choice((0, 4, 32)),
    )
    bases = [letters(rng, longest) for _ in range(2)]
    while rig.turns < STEPS:
        if rng.random() < 0.35 and len(rig.scheduler._roster.room) < 12:
            random_request(rig, rng, bases, longest)
        if rng.random() < 0.05 and rig.requests:
            rig.scheduler.cancel(rng.choice(rig.requests[-12:]).id)
        rig.turn()
    rig.drain()
    rig.verify()
    rig.assert_idle()
    assert len(rig.requests) > 10
    ended = [event for event in rig.events if event.finish_reason]
    assert sorted(e.request_id for e in ended) == sorted(r.id for r in rig.requests)
    kept = sum(len(r.output_ids) for r in rig.requests)
    assert rig.metrics.emitted_tokens == kept


def test_the_random_work_reaches_the_hard_paths() -> None:
    """The cases above would prove little if they never retracted, evicted, shared or overshot."""
    rng = random.Random(7)
    rig = Rig(page_size=4, pages=40, max_context=60, width=4, lag=1, headroom=0, max_running=8, seed=7)
    bases = [letters(rng, 60) for _ in range(2)]
    for _ in range(120):
        random_request(rig, rng, bases, 60)
    rig.drain()
    rig.verify()
    m = rig.metrics
    assert min(m.retractions, m.evicted_pages, m.cached_tokens, m.overshoot_tokens) > 0, m
