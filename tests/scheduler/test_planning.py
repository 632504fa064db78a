"""What a step contains: chunks, alternation, prefix hits, order of admission, refusals."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from scheduler_fakes import Rig, expected, letters

from engine.batch import Mode, SamplingClass
from engine.errors import InternalError, UserError
from engine.params import SamplingParams
from engine.request import Request, collect, expand


def prompt(count: int, seed: int = 0) -> list[int]:
    return letters(random.Random(seed), count)


def modes(rig: Rig) -> str:
    """E for a prefill step, V for a decode step."""
    return "".join("E" if step.mode is Mode.EXTEND else "V" for step in rig.device.steps)


@pytest.mark.parametrize("lag", [0, 1])
def test_prefill_then_decode_to_the_length(lag: int) -> None:
    rig = Rig(lag=lag)
    request = rig.submit(prompt(9), max_tokens=5)
    rig.drain()
    rig.verify()
    assert modes(rig) == "EVVVV", "no step is spent on a request that is sure to have ended"
    assert request.finish_reason == "length"
    assert rig.metrics.overshoot_tokens == 0


def test_one_token_needs_no_decode_step() -> None:
    rig = Rig()
    rig.submit(prompt(9), max_tokens=1)
    rig.drain()
    rig.verify()
    assert modes(rig) == "E"


def test_a_run_that_brings_the_end_near_saves_the_next_launch() -> None:
    """Widths above one: the host knows after a run that the step in flight is sure to be the last."""
    rig = Rig(width=4, drafter="right", lag=1)
    rig.submit(prompt(9), max_tokens=1 + 4 + 1)
    rig.drain()
    rig.verify()
    assert modes(rig) == "EVV"
    assert rig.metrics.overshoot_tokens == 0


def test_chunks_share_the_budget_and_only_the_last_one_emits() -> None:
    rig = Rig(chunk_tokens=10)
    rig.submit(prompt(24, 1), max_tokens=2)
    rig.submit(prompt(3, 2), max_tokens=2)
    rig.drain()
    rig.verify()
    extends = [s for s in rig.device.steps if s.mode is Mode.EXTEND]
    assert [s.query_lens for s in extends] == [(10,), (10,), (4, 3)]
    assert [s.bounds for s in extends] == [(0,), (10,), (20, 0)]
    assert [s.emits for s in extends] == [(False,), (False,), (True, True)]
    assert [len(s.new_rows) for s in extends] == [1, 0, 1]


@pytest.mark.parametrize("streak", [1, 2, 3])
def test_prefill_and_decode_alternate(streak: int) -> None:
    rig = Rig(chunk_tokens=8, prefill_streak=streak, pages=200)
    rig.submit(prompt(4, 1), max_tokens=40)
    rig.turn()
    rig.submit(prompt(64, 2), max_tokens=2)
    rig.drain()
    rig.verify()
    after_first = modes(rig)[1:]
    longest = max(len(run) for run in after_first.split("V"))
    assert longest == streak, after_first
    assert "VV" not in after_first[: after_first.rindex("E")], "nor does decoding starve prefill"


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


def test_a_step_carries_the_union_of_its_sampling_classes() -> None:
    rig = Rig()
    rig.submit(prompt(5, 1), max_tokens=3)
    rig.submit(prompt(5, 2), max_tokens=9, temperature=0.7, top_p=0.9)
    rig.submit(prompt(5, 3), max_tokens=6, logprobs=3)
    rig.drain()
    verify = [s.sampling for s in rig.device.steps if s.mode is Mode.VERIFY]
    assert verify[0] == SamplingClass(sampled=True, filters=True, top_logprobs=3)
    assert verify[-1] == SamplingClass(sampled=True, filters=True)


def test_a_large_request_is_not_overtaken_forever() -> None:
    rig = Rig(page_size=4, pages=20, max_context=80, headroom=0, max_running=8)
    for i in range(4):
        rig.submit(prompt(8, i), max_tokens=20)
    rig.turn()
    large = rig.submit(prompt(50, 9), max_tokens=20)
    small = [rig.submit(prompt(4, 20 + i), max_tokens=20) for i in range(20)]
    rig.drain()
    rig.verify()
    assert large.scheduled_at <= min(r.scheduled_at for r in small)


@pytest.mark.parametrize("policy", ["fcfs", "longest_prefix"])
def test_policies_order_the_queue(policy: str) -> None:
    rig = Rig(policy=policy, max_running=1, page_size=4)
    base = prompt(40, 1)
    rig.submit(base, max_tokens=2)
    rig.drain()
    stranger = rig.submit(prompt(30, 2), max_tokens=2)
    short = rig.submit(base[:8] + prompt(9, 3), max_tokens=2)
    long = rig.submit(base[:36] + prompt(9, 4), max_tokens=2)
    rig.drain()
    order = sorted((stranger, short, long), key=lambda r: r.scheduled_at)
    assert order == ([stranger, short, long] if policy == "fcfs" else [long, short, stranger])


def test_longest_prefix_starves_nobody() -> None:
    rig = Rig(policy="longest_prefix", max_running=1, page_size=4, aging=12)
    base = prompt(40, 1)
    rig.submit(base, max_tokens=2)
    rig.drain()
    rig.submit(base[:36] + prompt(3, 2), max_tokens=2)
    stranger = rig.submit(prompt(30, 3), max_tokens=2)
    for i in range(60):
        rig.submit(base[:36] + prompt(3, 10 + i), max_tokens=2)
        rig.turn()
    assert stranger.finished


def test_same_work_same_plan() -> None:
    def plan() -> list[str]:
        rig = Rig(pages=24, width=4, max_running=6, headroom=0, seed=3)
        for i in range(12):
            rig.submit(prompt(5 + i, i), max_tokens=20, stop=("ab",))
        rig.drain()
        return [repr(step) for step in rig.device.steps]

    assert plan() == plan()


def test_the_page_table_holds_every_entry() -> None:
    """Rows of max_context + 3 widths are enough, at the very end of the context too."""
    width, context, page = 4, 61, 2
    rig = Rig(page_size=page, width=width, max_context=context, pages=40, drafter="wrong")
    rig.submit(prompt(20), max_tokens=None)
    rig.drain()
    rig.verify()
    assert context // page <= rig.device.max_entry < -(-(context + 3 * width) // page)


def test_a_request_that_fills_the_pool_alone_runs() -> None:
    rig = Rig(page_size=1, pages=59, max_context=60, width=1)
    rig.submit(prompt(30), max_tokens=None)
    rig.submit(prompt(30, 1), max_tokens=None)
    rig.drain()
    rig.verify()
    assert rig.scheduler.ledger.total == 59


def test_a_pool_that_drafts_outgrow_is_not_blamed_on_the_answer() -> None:
    rig = Rig(page_size=1, pages=60, max_context=60, width=32)
    with pytest.raises(UserError, match=r"32 of them for a decode step and its drafts.*draft fewer tokens"):
        rig.submit(prompt(20), max_tokens=12)
    rig = Rig(page_size=1, pages=20, max_context=60, width=1)
    with pytest.raises(UserError, match=r"raise cache\.tokens, or lower sampling\.max_tokens"):
        rig.submit(prompt(20), max_tokens=12)


REFUSALS = [
    (prompt(0), {}, "prompt .* is empty"),
    (prompt(60), {}, r"60 tokens, cache\.max_context=60 .* raise cache\.max_context"),
    (prompt(20), {"max_tokens": 35}, r"20 tokens and up to 35 .* the pool has 40: raise cache\.tokens"),
]


@pytest.mark.parametrize(("ids", "params", "message"), REFUSALS)
def test_what_can_never_run_is_refused_with_the_way_out(ids, params, message) -> None:  # type: ignore[no-untyped-def]
    rig = Rig(page_size=4, pages=10, max_context=60)
    good = rig.submit(prompt(10), max_tokens=4)
    with pytest.raises(UserError, match=message):
        rig.scheduler.add(Request("bad", ids, SamplingParams(**params)))
    rig.drain()
    rig.verify()
    rig.assert_idle()
    assert good.finish_reason == "length"
    assert not rig.scheduler.cancel("bad")


def test_a_full_queue_and_a_used_id_are_refused() -> None:
    rig = Rig(max_waiting=2)
    rig.submit(prompt(5), max_tokens=4)
    with pytest.raises(UserError, match="'r0' is running already"):
        rig.scheduler.add(Request("r0", prompt(5), SamplingParams()))
    rig.submit(prompt(5), max_tokens=4)
    with pytest.raises(UserError, match=r"scheduler\.max_waiting=2"):
        rig.submit(prompt(5), max_tokens=4)
    rig.drain()
    assert rig.add(Request("r0", prompt(5), SamplingParams(max_tokens=1))).id == "r0", "free again"


def test_breaking_the_order_of_calls_is_an_internal_error() -> None:
    rig = Rig()
    rig.submit(prompt(5), max_tokens=9)
    first = rig.scheduler.schedule()
    second = rig.scheduler.schedule()
    assert first is not None
    assert second is not None
    with pytest.raises(InternalError, match="in flight"):
        rig.scheduler.schedule()
    handle = rig.device.launch(first)
    result = rig.device.resolve(handle)
    with pytest.raises(InternalError, match="out of order"):
        rig.scheduler.apply(second, result)


def test_a_device_that_emits_nothing_is_caught() -> None:
    rig = Rig(lag=0)
    rig.submit(prompt(5), max_tokens=9)
    step = rig.scheduler.schedule()
    assert step is not None
    result = rig.device.resolve(rig.device.launch(step))
    result.tokens[0].clear()
    with pytest.raises(InternalError, match="emitted nothing"):
        rig.scheduler.apply(step, result)


def test_outputs_do_not_depend_on_the_oracle_being_lenient() -> None:
    """The expected ids differ from prompt to prompt and position to position."""
    runs = {tuple(expected(prompt(9, i), SamplingParams(max_tokens=20), 128)[0]) for i in range(30)}
    assert len(runs) == 30


def test_scheduler_and_configs_need_no_torch() -> None:
    code = (
        "import sys, engine.scheduler, engine.policy, engine.request, engine.cache.radix, engine.cache.none;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
