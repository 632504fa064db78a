"""The Python API in the orders that people use it: interrupted, closed early or twice, asked for nonsense."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from engine import LLM, SamplingParams
from engine.errors import UserError

SHORT = SamplingParams(max_tokens=6)
LOOPS = ("none", "future")


def make(loop: str = "future") -> LLM:
    return LLM(
        "model=tiny", "device=cpu", "threads=1", "scheduler.max_running=4", "cache.tokens=1024",
        f"overlap={loop}", "overlap.debug=true",
    )  # fmt: skip


@pytest.fixture(params=LOOPS)
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with make(request.param) as engine:
        yield engine


def answers(llm: LLM) -> list[tuple[int, ...]]:
    return [output.completions[0].token_ids for output in llm.generate(["a", "b", "c"], SHORT)]


@pytest.mark.parametrize("stage", ["schedule", "launch", "resolve", "apply"])
@pytest.mark.parametrize("moment", [1, 2, 5])
def test_ctrl_c_within_a_step_leaves_the_engine_usable(
    llm: LLM, stage: str, moment: int, monkeypatch: Any
) -> None:
    before = answers(llm)
    owner = llm._scheduler if stage in ("schedule", "apply") else llm._loop._executor
    original, calls = getattr(owner, stage), 0

    def interrupted(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == moment:
            signal.raise_signal(signal.SIGINT)
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(owner, stage, interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["x", "y"], SamplingParams(max_tokens=50))
    assert calls >= moment
    assert answers(llm) == before
    llm.check()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_chat_as_it_comes_is_the_chat(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    whole = llm.chat(messages, SHORT).completions[0]
    pieces = list(llm.chat_stream(messages, SHORT))
    assert len(pieces) > 1
    assert tuple(i for piece in pieces for i in piece.token_ids) == whole.token_ids
    assert "".join(piece.text for piece in pieces) == whole.text


def test_ctrl_c_in_a_stream_leaves_other_streams_whole(llm: LLM) -> None:
    expected = llm.generate(["one"], SHORT)[0].completions[0].token_ids
    other, stopped = llm.stream("one", SHORT), llm.stream("two", SamplingParams(max_tokens=50))
    original = llm._loop._executor.resolve
    llm._loop._executor.resolve = lambda handle: (signal.raise_signal(signal.SIGINT), original(handle))[1]
    with pytest.raises(KeyboardInterrupt):
        list(stopped)
    del llm._loop._executor.resolve
    assert tuple(i for delta in other for i in delta.token_ids) == expected
    llm.check()


def test_an_error_in_on_finish_cancels_the_rest(llm: LLM) -> None:
    before = answers(llm)

    def fail(output: object) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        llm.generate(["a"] * 9, SHORT, on_finish=fail)
    assert answers(llm) == before
    llm.check()


@pytest.mark.parametrize("read", [0, 1])
def test_a_closed_stream_cancels_its_request(llm: LLM, read: int) -> None:
    stream = llm.stream("hello", SamplingParams(max_tokens=50))
    for _ in range(read):
        next(stream)
    del stream
    while llm._loop.has_work():
        llm.step()
    assert not llm.has_work()


def test_a_closed_engine_says_so_and_closes_again() -> None:
    llm = make()
    stream = llm.stream("hello", SHORT)
    llm.close()
    llm.close()
    del stream
    uses = (
        lambda: llm.generate(["a"]),
        lambda: llm.stream("a"),
        llm.check,
        llm.step,
        lambda: llm.cancel("x"),
    )
    for use in uses:
        with pytest.raises(UserError, match="closed"):
            use()


@pytest.mark.parametrize(
    ("prompts", "params", "words"),
    [
        ("one text", None, "list of prompts"),
        ([1, 2, 3], None, "list of token ids"),
        ([None], None, "list of token ids"),
        ([np.array([1.5, 2.0])], None, "list of token ids"),
        ([np.array([[1, 2]])], None, "list of token ids"),
        (["a"], {"max_tokens": 3}, "SamplingParams"),
        (["a", "b"], [SHORT], "2 prompts"),
        (["a", [10**9]], None, "token id 1000000000"),
        (["\ud800"], None, "surrogate"),
    ],
)
def test_nonsense_is_refused_and_nothing_of_it_kept(prompts: Any, params: Any, words: str) -> None:
    with make() as llm:
        with pytest.raises(UserError, match=words):
            llm.generate(prompts, params)
        assert not llm._live
        assert not llm._scheduler.has_work()


def test_prompts_may_be_arrays() -> None:
    with make() as llm:
        plain = llm.generate([[1, 2, 3]], SHORT)[0].completions[0].token_ids
        assert llm.generate(np.array([[1, 2, 3]]), SHORT)[0].completions[0].token_ids == plain
