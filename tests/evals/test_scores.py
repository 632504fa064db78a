"""Log-probabilities of given tokens against those of plain prefills, one token at a time."""

from __future__ import annotations

import pytest
import torch

from engine import LLM
from engine.scores import Asked, score

SEQUENCES = [list(range(60, 80)), [5, 9], [7] * 33, list(b"the quick brown fox jumps over the lazy dog")]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("model=tiny", "model.dtype=float32", "device=cpu", "cache.page_size=4", "threads=1")


def reference(llm: LLM, ids: list[int], start: int) -> tuple[list[float], list[bool]]:
    logprobs, greedy = [], []
    for place in range(start, len(ids)):
        logits = llm.next_token_logits(ids[:place])
        logprobs.append(float(torch.log_softmax(logits, -1)[ids[place]]))
        greedy.append(int(logits.argmax()) == ids[place])
    return logprobs, greedy


@pytest.mark.parametrize("start", [1, 2])
def test_every_token_is_scored_given_all_before_it(llm: LLM, start: int) -> None:
    asked = [Asked(tuple(ids), min(start, len(ids) - 1)) for ids in SEQUENCES]
    found = score(llm.target_states(()), asked)
    for one, scored in zip(asked, found, strict=True):
        logprobs, greedy = reference(llm, list(one.ids), one.start)
        assert scored.logprobs == pytest.approx(logprobs, abs=1e-4)
        assert list(scored.greedy) == greedy


def test_batches_and_slices_change_nothing(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    states = llm.target_states(())
    asked = [Asked(tuple(ids), 1) for ids in SEQUENCES]
    whole = score(states, asked)
    monkeypatch.setattr("engine.scores.TOKENS", 30)
    monkeypatch.setattr("engine.scores.ROWS", 3)
    parts = score(states, asked)
    for a, b in zip(whole, parts, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
        assert a.greedy == b.greedy


def test_what_the_model_says_itself_is_greedy(llm: LLM) -> None:
    from engine import SamplingParams

    output = llm.generate([list(b"abc")], SamplingParams(max_tokens=8, ignore_eos=True))[0]
    ids = (*output.prompt_ids, *output.completions[0].token_ids)
    (scored,) = score(llm.target_states(()), [Asked(ids, 3)])
    assert scored.greedy == (True,) * 8
