"""What a step contains: chunks, prefill and decode in turn, no step for nothing, page table entries."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hash_model import expected, prompt
from scheduler_rig import Rig

from engine.batch import Mode
from engine.errors import InternalError
from engine.params import SamplingParams
from engine.sampling.asked import SamplingClass


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


def test_a_step_carries_the_union_of_its_sampling_classes() -> None:
    rig = Rig()
    rig.submit(prompt(5, 1), max_tokens=3)
    rig.submit(prompt(5, 2), max_tokens=9, temperature=0.7, top_p=0.9)
    rig.submit(prompt(5, 3), max_tokens=6, logprobs=3)
    rig.drain()
    verify = [s.sampling for s in rig.device.steps if s.mode is Mode.VERIFY]
    assert verify[0] == SamplingClass(sampled=True, filters=True, top_logprobs=3)
    assert verify[-1] == SamplingClass(sampled=True, filters=True)


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


def test_every_prompt_has_an_output_of_its_own() -> None:
    """So what belongs to another request would be noticed."""
    runs = {tuple(expected(prompt(9, i), SamplingParams(max_tokens=20), 128)[0]) for i in range(30)}
    assert len(runs) == 30


def test_scheduler_and_configs_need_no_torch() -> None:
    code = (
        "import sys, engine.scheduler, engine.policy, engine.request, engine.cache.radix, engine.cache.none;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
