"""What requests take from the prefix cache: whole pages that are computed, never one that is half written."""

from __future__ import annotations

import pytest
from hash_model import prompt
from scheduler_rig import Rig

from engine.batch import Mode
from engine.params import SamplingParams
from engine.request import collect, expand


def test_a_fully_cached_prompt_still_computes_a_token() -> None:
    rig = Rig(page_size=4)
    ids = prompt(16)
    for _ in range(2):
        rig.submit(ids, max_tokens=2)
        rig.drain()
    rig.verify()
    assert [r.cached_tokens for r in rig.requests] == [0, 12]
    assert [s.query_lens for s in rig.device.steps if s.mode is Mode.EXTEND] == [(16,), (4,)]


def test_page_size_one_caches_all_but_the_last_token() -> None:
    rig = Rig(page_size=1)
    for _ in range(2):
        rig.submit(prompt(16), max_tokens=1)
        rig.drain()
    assert [r.cached_tokens for r in rig.requests] == [0, 15]


@pytest.mark.parametrize("streak", [1, 3])
@pytest.mark.parametrize("lag", [0, 1])
def test_same_prompt_at_once_shares_no_live_page(streak: int, lag: int) -> None:
    """The second waits until the first's prefill is applied and then hits the cache: no half-written page."""
    rig = Rig(page_size=16, prefill_streak=streak, lag=lag)
    ids = prompt(3 * 16 + 12)
    rig.submit(ids, max_tokens=8)
    rig.submit(ids, max_tokens=8)
    rig.drain()
    rig.verify()
    assert [r.cached_tokens for r in rig.requests] == [0, 48]


def test_a_prefix_being_computed_holds_back_only_those_who_gain() -> None:
    rig = Rig(page_size=4)
    base = prompt(40, 1)
    rig.submit(base, max_tokens=4)
    rig.submit(base[:36] + prompt(4, 2), max_tokens=4)  # gains: waits for the cache
    rig.submit(prompt(40, 3), max_tokens=4)  # unrelated: does not wait
    rig.submit(base[:8] + prompt(40, 4), max_tokens=4)  # little to gain: does not wait
    rig.drain()
    rig.verify()
    assert len(rig.device.steps[0].rows) == 3
    assert [r.cached_tokens for r in rig.requests] == [0, 36, 0, 0]


def test_samples_share_the_prompt_and_count_it_once() -> None:
    rig = Rig(page_size=4)
    params = SamplingParams(max_tokens=6, n=4, temperature=1.0)
    samples = [rig.add(r) for r in expand("q", prompt(22), params, seed=7, prompt="text")]
    assert len({r.sampling.key for r in samples}) == 4, "each sample has its own random numbers"
    rig.drain()
    output = collect(list(reversed(samples)))
    assert [c.index for c in output.completions] == [0, 1, 2, 3]
    assert (output.prompt_tokens, output.completion_tokens, output.prompt) == (22, 24, "text")
    assert [r.cached_tokens for r in samples] == [0, 20, 20, 20]
    assert output.cached_tokens == 0


@pytest.mark.parametrize("successor", [False, True])
def test_many_turns_reuse_the_whole_conversation(successor: bool) -> None:
    rig = Rig(page_size=4, pages=400, max_context=400, successor_keys=successor, width=4)
    history, previous = prompt(21), []
    for turn in range(6):
        request = rig.submit(history, max_tokens=13)
        rig.drain()
        assert request.cached_tokens >= len(previous) - 4
        previous = history + request.output_ids
        history = previous + prompt(9, turn + 1)
    rig.verify()
    assert rig.metrics.cached_tokens / rig.metrics.prompt_tokens > 0.6
