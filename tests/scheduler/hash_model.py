"""A model in plain Python: the next token depends on the whole prefix, so scheduling must not show in it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from engine.params import SamplingParams

LETTERS = range(97, 105)  # the model's vocabulary: the bytes a..h


def digest(state: int, token: int) -> int:
    """Digest of a prefix, from that of the prefix without its last token."""
    return (state * 1103515245 + token + 12345) % 2147483647


def digests(tokens: Sequence[int]) -> list[int]:
    out, state = [], 1
    for token in tokens:
        state = digest(state, token)
        out.append(state)
    return out


def next_token(state: int) -> int:
    """What the model says after a prefix."""
    return LETTERS[(state >> 7) % len(LETTERS)]


def expected(prompt: Sequence[int], params: SamplingParams, max_context: int) -> tuple[list[int], str]:
    """(token ids, finish reason) of a request that runs alone."""
    limit = min(max_context, len(prompt) + (params.max_tokens or max_context))
    state, out = digests(prompt)[-1], []
    while True:
        token = next_token(state)
        out.append(token)
        state = digest(state, token)
        text = bytes(out).decode()
        if token in params.stop_token_ids or any(s in text for s in params.stop):
            return out, "stop"
        if len(prompt) + len(out) == limit:
            return out, "length"


def expected_text(ids: Sequence[int], params: SamplingParams) -> str:
    """The text of those ids: without the stop id, else cut before the stop string that completes first."""
    text = bytes(ids).decode()
    if ids and ids[-1] in params.stop_token_ids:
        return text[:-1]
    ends = [(text.find(s) + len(s), -len(s)) for s in params.stop if s in text]
    if ends:
        end, minus = min(ends)
        return text[: end + minus]
    return text


def letters(rng: random.Random, count: int) -> list[int]:
    return [rng.choice(LETTERS) for _ in range(count)]


def prompt(count: int, seed: int = 0) -> list[int]:
    return letters(random.Random(seed), count)
