"""Ends inside accepted runs: one token of a greedy run after the other is declared its end.

Drafts are always right, so the target accepts past every end: nothing behind it may be seen or counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from support.drafters import Scripted, ScriptedTree
from support.engines import FAKE, answers, make, run

from engine.answers import RequestOutput
from engine.llm import LLM
from engine.params import SamplingParams

PROMPT = [65, 3, 7, 9, 250, 1]
LETTERS = dict.fromkeys(range(97, 123), 40.0)  # the answer is text, so that stop strings can be cut from it
FREE = SamplingParams(max_tokens=14, ignore_eos=True, logit_bias=LETTERS, logprobs=1)
DRAFTS = 4
INDICES = range(12)
LOOPS = ("none", "future")
KINDS = {"chain": Scripted, "tree": ScriptedTree}
EOS = 257


@cache
def free() -> tuple[int, ...]:
    [(ids, _, reason)] = run([PROMPT], FREE, *FAKE, "overlap=none")
    assert (len(ids), reason) == (14, "length")
    return ids


def engine(kind: str, loop: str, *overrides: str) -> tuple[LLM, Scripted]:
    known = {tuple(PROMPT): [*PROMPT, *free()]}
    drafter = KINDS[kind](known, 259, drafts=DRAFTS, script="right")
    parts = {"speculator": drafter}
    return make(*FAKE, "overlap.debug=true", f"overlap={loop}", *overrides, parts=parts), drafter


def served(kind: str, loop: str, params: Sequence[SamplingParams]) -> list[RequestOutput]:
    """One batch; counts are held against what users got."""
    llm, drafter = engine(kind, loop)
    with llm:
        outputs = llm.generate([PROMPT] * len(params), params)
        llm.check()
        counts = llm.metrics.snapshot()
    lengths = [len(output.completions[0].token_ids) for output in outputs]
    assert lengths == [output.completion_tokens for output in outputs]
    assert counts["emitted_tokens"] == sum(lengths), "E6: no token behind an end is counted"
    assert counts["decode_tokens"] == sum(n - 1 for n in lengths)
    assert counts["decode_results"] == sum(-(-(n - 1) // (DRAFTS + 1)) for n in lengths)
    whole, rest = zip(*(divmod(n - 1, DRAFTS + 1) for n in lengths), strict=True)
    assert counts["accepted_drafts"] == sum(whole) * DRAFTS + sum(rest)  # as far as they are kept
    assert counts["accepted_drafts"] <= counts["drafted_tokens"]
    assert max(drafter.accepted) == DRAFTS
    for output in outputs:
        [sample] = output.completions
        assert sample.logprobs is not None
        assert [entry.token for entry in sample.logprobs] == list(sample.token_ids)
    return outputs


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", KINDS)
def test_e2_e4_a_stop_id_at_every_index(kind: str, loop: str) -> None:
    ids = free()
    outputs = served(kind, loop, [replace(FREE, stop_token_ids=(ids[i],)) for i in INDICES])
    for i, output in zip(INDICES, outputs, strict=True):
        [sample] = output.completions
        kept = ids[: ids.index(ids[i]) + 1]
        assert sample.token_ids == kept
        assert sample.finish_reason == "stop"
        assert sample.text == bytes(kept[:-1]).decode()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", KINDS)
def test_e2_max_tokens_at_every_index(kind: str, loop: str) -> None:
    outputs = served(kind, loop, [replace(FREE, max_tokens=i + 1) for i in INDICES])
    for i, output in zip(INDICES, outputs, strict=True):
        [sample] = output.completions
        assert sample.token_ids == free()[: i + 1]
        assert sample.finish_reason == "length"
        assert sample.text == bytes(sample.token_ids).decode()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", KINDS)
def test_e2_a_stop_id_and_max_tokens_at_every_distance(kind: str, loop: str) -> None:
    """The earlier index wins; at one index it is a stop."""
    ids = free()
    at = next(i for i in range(6, 9) if ids.index(ids[i]) == i)
    outputs = served(
        kind, loop, [replace(FREE, stop_token_ids=(ids[at],), max_tokens=i + 1) for i in INDICES]
    )
    for i, output in zip(INDICES, outputs, strict=True):
        [sample] = output.completions
        assert sample.token_ids == ids[: min(i, at) + 1]
        assert sample.finish_reason == ("stop" if i >= at else "length")


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", KINDS)
def test_e3_a_stop_string_that_completes_at_every_index(kind: str, loop: str, include: bool) -> None:
    text = bytes(free()).decode()
    pieces = [text[max(0, i - 2) : i + 1] for i in INDICES]
    outputs = served(kind, loop, [replace(FREE, stop=(piece,), include_stop=include) for piece in pieces])
    for piece, output in zip(pieces, outputs, strict=True):
        [sample] = output.completions
        end = text.index(piece) + len(piece)
        assert sample.text == text[: end if include else end - len(piece)]
        assert sample.finish_reason == "stop"
        assert sample.token_ids == free()[:end]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", KINDS)
def test_e7_p14_ends_that_are_ignored_or_masked(kind: str, loop: str) -> None:
    """ignore_eos goes on past the end, min_tokens holds it back to every index; all equal plain decoding."""
    eager = {**LETTERS, EOS: 70.0}  # the end would come at once
    params = [replace(FREE, logit_bias=eager, ignore_eos=False, min_tokens=i) for i in INDICES]
    params += [replace(FREE, logit_bias=eager, ignore_eos=True)]
    plain = run([PROMPT] * len(params), params, *FAKE, "overlap=none", "scheduler.max_running=1")
    known = {tuple(PROMPT): [*PROMPT, *plain[-2][0]]}
    drafter = KINDS[kind](known, 259, drafts=DRAFTS, script="right")
    with make(*FAKE, "overlap.debug=true", f"overlap={loop}", parts={"speculator": drafter}) as llm:
        found = answers(llm.generate([PROMPT] * len(params), params))
        assert llm.metrics.snapshot()["emitted_tokens"] == sum(len(ids) for ids, _, _ in found)
    assert found == plain
    assert [len(ids) for ids, _, _ in found] == [*(i + 1 for i in INDICES), 14]
    assert {ids[-1] for ids, _, _ in found[:-1]} == {EOS}
    assert found[-1][0].count(EOS) > 1
    assert max(drafter.accepted) == DRAFTS


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_behind_an_end_never_enters_the_cache(kind: str, loop: str) -> None:
    """The whole undisturbed answer as a prompt finds the kept tokens in the cache, and no more of it."""
    ids = free()
    for i in INDICES:
        kept = ids[: ids.index(ids[i]) + 1]
        llm, _ = engine(kind, loop, "cache.page_size=1")
        with llm:
            llm.generate([PROMPT], replace(FREE, stop_token_ids=(ids[i],)))
            llm.generate([[1, 2]], replace(FREE, max_tokens=2))  # a late step of the first may hold its pages
            [again] = llm.generate([[*PROMPT, *ids]], replace(FREE, max_tokens=2))
            assert again.cached_tokens == len(PROMPT) + len(kept) - 1  # E4: the last one has no KV
            llm.check()
        assert answers([again]) == run([[*PROMPT, *ids]], replace(FREE, max_tokens=2), *FAKE)


@pytest.mark.parametrize("kind", KINDS)
def test_e3_streams_see_no_more_than_the_answer(kind: str) -> None:
    """Deltas of a stopped request: ids, logprobs and text end together."""
    text = bytes(free()).decode()
    for i in range(2, 12):
        llm, _ = engine(kind, "future")
        with llm:
            news = list(llm.stream(PROMPT, replace(FREE, stop=(text[i - 2 : i + 1],))))
        end = text.index(text[i - 2 : i + 1])
        assert "".join(delta.text for delta in news) == text[:end]
        assert tuple(t for delta in news for t in delta.token_ids) == free()[: end + 3]
        assert sum(len(delta.logprobs or ()) for delta in news) == end + 3
        assert [delta.finish_reason for delta in news if delta.finish_reason] == ["stop"]
