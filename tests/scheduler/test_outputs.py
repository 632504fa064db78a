"""One trimmed run: ids, text, logprobs, usage, metrics and cache say the same, wherever a request ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hash_model import expected, expected_text, prompt
from scheduler_rig import Rig

from engine.batch import Finish
from engine.params import SamplingParams
from engine.request import Request, collect
from engine.text.stream import Fed


def alone(count: int, max_tokens: int = 40) -> list[int]:
    """The ids that the model gives after prompt(count) with nothing to stop it."""
    return expected(prompt(count), SamplingParams(max_tokens=max_tokens), 1000)[0]


def first_use(ids: Sequence[int], at: int) -> int:
    return ids.index(ids[at]) + 1


WIDTHS = pytest.mark.parametrize("width", [1, 4, 8])
LAGS = pytest.mark.parametrize("lag", [0, 1])


@WIDTHS
@LAGS
@pytest.mark.parametrize("at", range(0, 9, 2))
def test_stop_id_inside_the_budget_wins_and_beyond_it_does_not(width: int, lag: int, at: int) -> None:
    ids = alone(9)
    stop, length = ids[at], first_use(ids, at)
    for budget in (length, length + 3):
        rig = Rig(width=width, lag=lag, drafter="right")
        request = rig.submit(prompt(9), max_tokens=budget, stop_token_ids=(stop,))
        rig.drain()
        assert (request.finish_reason, request.output_ids) == ("stop", ids[:length])
        assert request.text == bytes(ids[: length - 1]).decode()
    if length > 1:
        rig = Rig(width=width, lag=lag, drafter="right")
        request = rig.submit(prompt(9), max_tokens=length - 1, stop_token_ids=(stop,))
        rig.drain()
        assert (request.finish_reason, request.output_ids) == ("length", ids[: length - 1])


@WIDTHS
@LAGS
@pytest.mark.parametrize("listener", [False, True])
@pytest.mark.parametrize("start", range(1, 12, 3))
def test_stop_string_trims_ids_and_logprobs_alike(width: int, lag: int, listener: bool, start: int) -> None:
    ids = alone(9)
    stop = bytes(ids[start : start + 3]).decode()
    cut = bytes(ids).decode().index(stop) + 3
    rig = Rig(width=width, lag=lag, drafter="right")
    request = rig.submit(prompt(9), listener, max_tokens=40, stop=(stop,), logprobs=1)
    rig.drain()
    assert (request.output_ids, request.finish) == (ids[:cut], Finish.STOP_STRING)
    assert request.finish_reason == "stop"
    assert request.text == bytes(ids[: cut - 3]).decode()
    assert request.logprobs is not None
    assert [entry.token for entry in request.logprobs] == ids[:cut]
    assert rig.metrics.emitted_tokens == cut == len(request.token_times)
    deltas = [e for e in rig.events if e.request_id == request.id]
    assert "".join(d.text for d in deltas) == request.text
    assert [t for d in deltas for t in d.token_ids] == request.output_ids
    assert [entry for d in deltas for entry in d.logprobs or ()] == request.logprobs
    assert [d.finish_reason for d in deltas if d.finish_reason] == ["stop"]


def test_stop_string_that_completes_with_the_last_token_is_a_stop() -> None:
    ids = alone(9)
    cut = bytes(ids).decode().index(bytes(ids[4:7]).decode()) + 3
    rig = Rig(width=4, drafter="right")
    request = rig.submit(prompt(9), max_tokens=cut, stop=(bytes(ids[4:7]).decode(),))
    rig.drain()
    assert (request.finish_reason, len(request.output_ids)) == ("stop", cut)


def test_include_stop_keeps_the_string() -> None:
    ids = alone(9)
    stop = bytes(ids[4:7]).decode()
    rig = Rig()
    request = rig.submit(prompt(9), max_tokens=40, stop=(stop,), include_stop=True)
    rig.drain()
    assert request.text.endswith(stop)
    assert request.text == bytes(request.output_ids).decode()


@WIDTHS
def test_accept_length_counts_what_users_get(width: int) -> None:
    """Drafts past the end are no success: emitted over results is the length after trimming."""
    ids = alone(9)
    stop = next(t for t in ids if 3 <= ids.index(t) <= 7)
    rig = Rig(width=width, drafter="right", lag=1)
    request = rig.submit(prompt(9), max_tokens=40, stop_token_ids=(stop,))
    rig.drain()
    count = len(request.output_ids)
    m = rig.metrics
    assert m.emitted_tokens == count == collect([request]).completion_tokens
    assert m.decode_tokens == count - 1, "the first token came from prefill"
    assert m.decode_results == -(-(count - 1) // width)
    assert m.accepted_drafts <= m.decode_tokens


@WIDTHS
def test_drafts_after_the_end_never_reach_the_cache(width: int) -> None:
    ids = alone(9)
    stop = ids[5]
    rig = Rig(width=width, drafter="right", page_size=1)
    request = rig.submit(prompt(9), max_tokens=40, stop_token_ids=(stop,))
    rig.drain()
    known = request.prompt_ids.tolist() + request.output_ids
    assert rig.scheduler.ledger.cache.cached == len(known) - 1, "the last token has no KV that counts"
    follow = rig.submit(known + prompt(4, 5), max_tokens=5)
    rig.drain()
    assert follow.cached_tokens == len(known) - 1
    rig.verify()


@pytest.mark.parametrize("asked", [None, 0, 1])
def test_each_request_gets_the_logprobs_it_asked_for(asked: int | None) -> None:
    rig = Rig()
    request = rig.submit(prompt(9), max_tokens=5, logprobs=asked)
    rig.submit(prompt(9, 1), max_tokens=5, logprobs=2)
    rig.drain()
    completion = request.completion()
    if asked is None:
        assert completion.logprobs is None
    else:
        assert completion.logprobs is not None
        assert [len(entry.top) for entry in completion.logprobs] == [asked] * 5


def test_a_listener_hears_every_step_and_others_only_the_end() -> None:
    rig = Rig(lag=1)
    heard = rig.submit(prompt(9), True, max_tokens=6)
    quiet = rig.submit(prompt(9, 1), max_tokens=6)
    rig.drain()
    deltas = [e for e in rig.events if e.request_id == heard.id]
    assert [len(d.token_ids) for d in deltas] == [1] * 6
    assert [d.finish_reason for d in deltas] == [None] * 5 + ["length"]
    (last,) = [e for e in rig.events if e.request_id == quiet.id]
    assert (list(last.token_ids), last.text) == (quiet.output_ids, quiet.text)
    rig.verify()


class CountingStream:
    """Text is one letter a token; counts feeds."""

    feeds = 0

    def feed(self, ids: Sequence[int], /) -> Fed:
        type(self).feeds += 1
        return Fed("x" * len(ids))

    def finish(self) -> str:
        return "."


def test_text_is_made_once_where_nobody_listens() -> None:
    CountingStream.feeds = 0
    rig = Rig(text_stream_factory=lambda request: CountingStream())
    request = rig.submit(prompt(9), max_tokens=20)
    rig.drain()
    assert CountingStream.feeds == 1
    assert request.text == "x" * 20 + "."


class BrokenStream:
    """Fails at one of its calls."""

    def __init__(self, where: str, count: int = 3) -> None:
        self.where = where
        self.count = count

    def feed(self, ids: Sequence[int], /) -> Fed:
        self.count -= 1
        if self.where == "feed" and self.count <= 0:
            raise ValueError("no such token")
        return Fed("x" * len(ids))

    def finish(self) -> str:
        if self.where == "finish":
            raise ValueError("no such token")
        return ""


@LAGS
@pytest.mark.parametrize("where", ["feed", "finish"])
@pytest.mark.parametrize("listener", [False, True])
def test_a_broken_detokeniser_fails_its_request_and_nobody_else(lag: int, where: str, listener: bool) -> None:
    def factory(request: Request) -> object:
        return BrokenStream(where, 3 if listener else 1) if request.id == "r1" else CountingStream()

    rig = Rig(lag=lag, text_stream_factory=factory)
    requests = [rig.submit(prompt(9, i), listener, max_tokens=9) for i in range(3)]
    rig.drain()
    rig.assert_idle()
    assert [r.finish_reason for r in requests] == ["length", "error", "length"]
    assert requests[1].completion().error == "ValueError: no such token"
    ends = {e.request_id: e.finish_reason for e in rig.events if e.finish_reason}
    assert ends == {"r0": "length", "r1": "error", "r2": "length"}
    for good in (requests[0], requests[2]):
        assert good.output_ids == expected(good.prompt_ids.tolist(), good.params, 128)[0]


def test_times_follow_the_tokens() -> None:
    rig = Rig(width=4, drafter="right")
    request = rig.submit(prompt(9), max_tokens=12)
    rig.drain()
    times = request.completion().token_times
    assert len(times) == 12
    assert list(times) == sorted(times)
    assert times[0] >= 0
    assert len(set(times[1:5])) == 1, "a run arrives at once"


def test_expected_text_is_an_independent_oracle() -> None:
    params = SamplingParams(stop=("bc", "abcd"))
    assert expected_text(list(b"xabcde"), params) == "xa"
    assert expected_text(list(b"xae"), SamplingParams(stop_token_ids=(101,))) == "xa"
