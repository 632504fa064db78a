"""Random load over the real table, step and loops: cancels, tiny pools, drafts; answers as if alone."""

from __future__ import annotations

import random

import pytest
from support.drafters import Scripted
from support.engines import FAKE, make

from engine.errors import UserError
from engine.llm import LLM
from engine.params import SamplingParams

POOL = ("cache.max_context=96", "scheduler.headroom=8", "sampling.max_tokens=8")
CASES = [
    (loop, page, width, cache)
    for loop in ("none", "future")
    for page, width, cache in ((1, 1, "radix"), (16, 4, "radix"), (16, 1, "none"), (64, 4, "radix"))
]


def _requests(source: random.Random, count: int) -> list[tuple[list[int], SamplingParams]]:
    heads = [[source.randrange(256) for _ in range(n)] for n in (20, 40)]
    made = []
    for i in range(count):
        own = [source.randrange(256) for _ in range(source.randrange(1, 24))]
        prompt = source.choice([*heads, []]) + own
        seeded = {"temperature": 0.9, "seed": i} if source.random() < 0.3 else {}
        stop = ("e",) if source.random() < 0.2 else ()
        made.append((prompt, SamplingParams(max_tokens=source.randrange(1, 30), stop=stop, **seeded)))
    return made


def _alone(requests: list[tuple[list[int], SamplingParams]]) -> list[tuple[int, ...]]:
    with make(*FAKE, "overlap=none", "cache=none", "scheduler.max_running=1", *POOL) as llm:
        outputs = llm.generate([p for p, _ in requests], [s for _, s in requests])
    return [o.completions[0].token_ids for o in outputs]


@pytest.mark.parametrize(("loop", "page", "width", "cache"), CASES)
def test_every_answer_is_as_if_alone(loop: str, page: int, width: int, cache: str) -> None:
    source = random.Random(page * 10 + width)
    requests = _requests(source, 60)
    alone = _alone(requests)
    known = {tuple(p): [*p, *ids] for (p, _), ids in zip(requests, alone, strict=True)}
    parts = {"speculator": Scripted(known, 259, drafts=width - 1, script="random")} if width > 1 else {}
    options = (f"overlap={loop}", "overlap.debug=true", f"cache={cache}", f"cache.page_size={page}", *POOL)
    with make(*FAKE, *options, "cache.tokens=256", "scheduler.chunk_tokens=24", parts=parts) as llm:
        cancelled = _drive(llm, requests, alone, source)
        while llm.has_work():  # the late step of the last request
            llm.step()
        llm.check()
        assert llm.metrics.finished_requests == 60
        assert llm.metrics.emitted_tokens <= sum(map(len, alone))
    assert 0 < len(cancelled) < 60


def _drive(
    llm: LLM,
    requests: list[tuple[list[int], SamplingParams]],
    alone: list[tuple[int, ...]],
    source: random.Random,
) -> set[str]:
    """Add, step and cancel at random; the accounting is checked after every turn."""
    waiting, running, cancelled = list(enumerate(requests)), {}, set()
    while waiting or running:
        while waiting and source.random() < 0.5:
            index, (prompt, params) = waiting.pop()
            running[llm.add(prompt, params)] = index
        if running and source.random() < 0.05:
            victim = source.choice(sorted(running))
            cancelled |= {victim} if llm.cancel(victim) else set()
        for delta in llm.step():
            if delta.finish_reason is not None:
                output = llm.output(delta.request_id)
                assert output is not None
                ids, expected = output.completions[0].token_ids, alone[running.pop(delta.request_id)]
                if delta.request_id in cancelled:
                    assert output.completions[0].finish_reason in ("cancelled", "stop", "length")
                    assert ids == expected[: len(ids)], "a cancelled answer is a beginning of the whole one"
                else:
                    assert ids == expected
        llm.check()
    return cancelled


def test_bad_requests_leave_nothing_behind() -> None:
    with make(*FAKE, *POOL, "cache.tokens=128") as llm:
        for prompt, reason in (([], "empty"), ([1, 300], "300"), ([1] * 200, "max_context")):
            with pytest.raises(UserError, match=reason):
                llm.add(prompt, SamplingParams(max_tokens=4))
        with pytest.raises(UserError, match="vocabulary"):
            llm.add([1], SamplingParams(stop_token_ids=(4000,)))
        assert not llm.has_work()
        llm.check()
        llm.add([1, 2], SamplingParams(max_tokens=2), request_id="mine")
        with pytest.raises(UserError, match="mine"):
            llm.add([1, 2], SamplingParams(max_tokens=2), request_id="mine")
        while llm.output("mine") is None:
            llm.step()


def test_a_closed_stream_cancels_its_request() -> None:
    with make(*FAKE) as llm:
        stream = llm.stream([1, 2, 3], SamplingParams(max_tokens=200, ignore_eos=True))
        first = next(stream)
        assert first.token_ids
        stream.close()
        while llm.has_work():
            llm.step()
        llm.check()
        assert llm.metrics.emitted_tokens < 20


def test_streams_can_be_interleaved_and_add_up() -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    with make(*FAKE) as llm:
        whole = [llm.generate([[7, i]], params)[0] for i in range(3)]
        streams = [llm.stream([7, i], params) for i in range(3)]
        texts = ["", "", ""]
        for _ in range(40):
            for i, stream in enumerate(streams):
                delta = next(stream, None)
                texts[i] += delta.text if delta else ""
        assert texts == [output.text for output in whole]
