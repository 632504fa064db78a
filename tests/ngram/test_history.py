"""The lookup in a request's own tokens against a plain-Python reading of its definition."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
import torch

from engine.batch import SeqLens
from speculative.ngram.drafts import MatchOptions
from speculative.ngram.history import TorchHistory
from speculative.views import DraftView

VOCAB = 50


def history(options: MatchOptions) -> TorchHistory:
    return TorchHistory(options, VOCAB, 200, torch.device("cpu"))


def view_of(texts: Sequence[Sequence[int]], slack: int = 0, width: int = 1) -> DraftView:
    """Rows 1.. hold the texts; an empty text stands for padding row 0. slack: how far bounds lie above."""
    longest = max([len(t) for t in texts], default=1)
    tokens = torch.full((len(texts) + 1, longest + slack + 4), -1, dtype=torch.int32)  # unwritten is -1
    tokens[0] = 0
    for i, text in enumerate(texts):
        tokens[i + 1, : len(text)] = torch.tensor(text, dtype=torch.int32)
    rows = [i + 1 if text else 0 for i, text in enumerate(texts)]
    lens = [max(len(text) - 1, 0) for text in texts]
    device = torch.tensor(lens, dtype=torch.int32)
    start = torch.arange(len(texts) + 1, dtype=torch.int32)
    bound = tuple(n + slack for n in lens)
    return DraftView(
        tokens,
        torch.tensor(rows, dtype=torch.int64),
        SeqLens(device, bound),
        {},
        torch.zeros(len(texts) + 1, 1, dtype=torch.int32),
        1,
        start,
        width,
    )


def expected(
    text: Sequence[int], options: MatchOptions, branches: int, depth: int
) -> list[tuple[int, list[int]]]:
    """(match length, continuation), best first, as the definition reads."""
    taken: set[int] = set()
    result = []
    for _ in range(branches):
        runs = [
            (_run(text, end, options.max_match), end)
            for end in range(len(text) - 1)
            if text[end + 1] not in taken
        ]
        best = max([n for n, _ in runs], default=0)
        if best < options.min_match:
            result.append((0, [-1] * depth))
            continue
        ends = [end for n, end in runs if n == best]
        if options.frequent:
            votes = Counter(text[end + 1] for end in ends)
            most = max(votes.values())
            ends = [end for end in ends if votes[text[end + 1]] == most]
        grown = list(text)
        for i in range(depth):
            grown.append(grown[ends[-1] + 1 + i])
        result.append((best, grown[len(text) :]))
        taken.add(text[ends[-1] + 1])
    return result


def _run(text: Sequence[int], end: int, most: int) -> int:
    n = 0
    while n < most and end - n >= 0 and text[end - n] == text[len(text) - 1 - n]:
        n += 1
    return n


def check(lookup, texts, options, branches, depth, slack=0) -> None:
    found = lookup.find(view_of(texts, slack), branches, depth)
    assert found.length.dtype == found.tokens.dtype == torch.int32
    got = [
        list(zip(n, t, strict=True))
        for n, t in zip(found.length.tolist(), found.tokens.tolist(), strict=True)
    ]
    assert got == [expected(text or [0], options, branches, depth) for text in texts]


def texts_of(seed: int, count: int, longest: int, letters: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(letters) for _ in range(draw.randint(1, longest))] for _ in range(count)]


@pytest.mark.parametrize("frequent", [False, True])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 3), (2, 8), (3, 9), (1, 16), (2, 20), (8, 8)])
def test_equals_the_definition(lengths, frequent):
    options = MatchOptions(*lengths, frequent)
    lookup = history(options)
    for seed, (longest, letters) in enumerate([(3, 2), (12, 2), (40, 3), (90, 6), (70, 40)]):
        for branches, depth in ((1, 1), (1, 7), (3, 4)):
            check(lookup, texts_of(seed, 7, longest, letters), options, branches, depth, slack=seed * 5)


def test_corners():
    options = MatchOptions(2, 8)
    lookup = history(options)
    texts = [
        [],  # the padding row
        [5],
        [5, 5],
        [5, 5, 5],  # overlaps itself: a loop of period 1
        [1, 2, 3, 1, 2],  # at position 0
        [1, 2, 3, 4],  # nothing
        [7, 1, 2, 9, 8, 1, 2],
        [1, 2, 3] * 9,
    ]
    check(lookup, texts, options, 1, 6)
    check(lookup, texts, options, 2, 3, slack=30)


def test_zero_requests():
    found = history(MatchOptions(2, 8)).find(view_of([]), 2, 3)
    assert found.length.shape == (0, 2)
    assert found.tokens.shape == (0, 2, 3)


def test_a_loop_is_continued_with_its_period():
    found = history(MatchOptions(2, 8)).find(view_of([[1, 2, 3, 1, 2, 3]]), 1, 8)
    assert found.tokens.tolist() == [[[1, 2, 3, 1, 2, 3, 1, 2]]]


def test_most_common_continuation():
    text = [1, 2, 9, 1, 2, 9, 0, 1, 2, 5, 0, 1, 2]
    view = view_of([text])
    assert history(MatchOptions(2, 2)).find(view, 1, 1).tokens.item() == 5
    assert history(MatchOptions(2, 2, True)).find(view, 1, 1).tokens.item() == 9
