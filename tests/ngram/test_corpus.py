"""The corpus: its order, its search against a look at every place, and what becomes of bad files."""

from __future__ import annotations

import json
import logging
import random
from collections import Counter

import pytest
import torch
from test_history import view_of

from engine.errors import UserError
from speculative.ngram.corpus import build_corpus, join, read_corpus
from speculative.ngram.corpus_search import DeviceCorpus, TorchCorpus
from speculative.ngram.drafts import Found, MatchOptions, merge
from speculative.ngram.reading import PIECE


def corpus_of(docs, max_match) -> DeviceCorpus:
    return DeviceCorpus.of(build_corpus(join(docs, max_match), max_match), torch.device("cpu"))


def random_docs(seed: int, letters: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(letters) for _ in range(draw.randint(0, 60))] for _ in range(12)]


def common(doc, end, text, most) -> int:
    n = 0
    while n < most and n <= end and n < len(text) and doc[end - n] == text[-1 - n]:
        n += 1
    return n


@pytest.mark.parametrize("max_match", [1, 3, 8, 11])
def test_the_order_is_that_of_contexts_read_backwards(max_match):
    tokens = join(random_docs(1, 3), max_match)
    corpus = build_corpus(tokens, max_match)
    contexts = [(*tokens[e - max_match + 1 : e + 1][::-1], e) for e in corpus.order.tolist()]
    ids = tokens.tolist()
    assert contexts == sorted(contexts)
    assert sorted(corpus.order.tolist()) == [
        e for e in range(len(ids) - 1) if ids[e] >= 0 and ids[e + 1] >= 0
    ]


@pytest.mark.parametrize("letters", [3, 8, 40])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 4), (2, 8), (3, 13)])
def test_finds_the_longest_context_and_its_most_common_continuation(lengths, letters):
    docs = random_docs(letters, letters)
    options = MatchOptions(*lengths)
    lookup = TorchCorpus(corpus_of(docs, lengths[1]), options)
    draw = random.Random(2)
    texts = [[draw.randrange(letters) for _ in range(draw.randint(1, 9))] for _ in range(12)]
    texts += [doc[: len(doc) // 2] + doc[len(doc) // 2 : -3] for doc in docs if len(doc) > 12]
    found = lookup.find(view_of(texts), 1, 4)
    checked_votes = 0
    for text, length, tokens in zip(texts, found.length.tolist(), found.tokens.tolist(), strict=True):
        places = [(common(doc, e, text, lengths[1]), doc, e) for doc in docs for e in range(len(doc) - 1)]
        best = max(n for n, _, _ in places)
        assert length == [best if best >= lengths[0] else 0]
        if not length[0]:
            assert tokens == [[-1] * 4]
            continue
        among = [(doc, e) for n, doc, e in places if n == best]
        follow = [(doc[e + 1 : e + 5] + [-1] * 4)[:4] for doc, e in among]
        assert tokens[0] in follow, "a continuation ends with its document"
        if len(among) <= 7:
            checked_votes += 1
            votes = Counter(f[0] for f in follow)
            assert votes[tokens[0][0]] == max(votes.values())
    assert checked_votes or lengths[1] == 1


def test_branches_start_with_distinct_tokens():
    docs = [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 9, 6], [7, 2, 8, 6], [1, 2]]
    lookup = TorchCorpus(corpus_of(docs, 4), MatchOptions(1, 4))
    found = lookup.find(view_of([[0, 1, 2]]), 4, 2)
    assert found.length.tolist() == [[2, 2, 1, 0]]
    assert found.tokens.tolist() == [[[3, 4], [9, 6], [8, 6], [-1, -1]]]


def test_zero_requests_and_the_padding_row():
    lookup = TorchCorpus(corpus_of([[1, 2, 3]], 8), MatchOptions(1, 8))
    assert lookup.find(view_of([]), 1, 3).tokens.shape == (0, 1, 3)
    assert lookup.find(view_of([[]]), 1, 3).length.tolist() == [[0]]


def found(*pairs) -> Found:
    return Found(
        torch.tensor([[n for n, _ in pairs]], dtype=torch.int32),
        torch.tensor([[t for _, t in pairs]], dtype=torch.int32),
    )


def test_merge_prefers_longer_then_the_first_and_keeps_siblings_distinct():
    own, other = found((3, [5, 6]), (2, [7, 8])), found((4, [7, 1]), (3, [9, 9]))
    both = merge(own, other)
    assert both.length.tolist() == [[4, 3]]
    assert both.tokens.tolist() == [[[7, 1], [5, 6]]], "at equal length the first source wins"
    again = merge(found((3, [5, 6]), (0, [-1, -1])), found((3, [5, 9]), (2, [4, 4])))
    assert again.length.tolist() == [[3, 2]]
    assert again.tokens.tolist() == [[[5, 6], [4, 4]]], "one first token, one branch"


def read(*paths, limit=1000, max_match=4):
    return read_corpus(
        tuple(map(str, paths)), lambda text: list(text.encode()), max_match=max_match, limit=limit
    )


def test_text_and_jsonl_are_read(tmp_path, caplog):
    text, rows = tmp_path / "a.txt", tmp_path / "b.jsonl"
    text.write_text("\ufeffab\ncd", encoding="utf-8")
    rows.write_text('{"text": "xy"}\n\n{"text": "z", "id": 1}\n', encoding="utf-8")
    with caplog.at_level(logging.INFO, "syncless"):
        corpus = read(text, rows)
    stops = [-1]
    assert corpus.tokens.tolist() == [-1] * 4 + [*b"ab\ncd"] + stops + [*b"xy"] + stops + [*b"z"] + stops
    assert "corpus of 5 tokens" in caplog.text


def test_a_long_text_is_tokenised_in_pieces(tmp_path):
    path = tmp_path / "long.txt"
    path.write_text(("x" * 999 + "\n") * (3 * PIECE // 1000), encoding="utf-8")
    sizes = []

    def encode(text: str) -> list[int]:
        sizes.append(len(text))
        return [1, 2]

    corpus = read_corpus((str(path),), encode, max_match=2, limit=100)
    assert len(sizes) >= 3
    assert max(sizes) < PIECE + 1000
    assert corpus.tokens.tolist() == [-1, -1] + [1, 2] * len(sizes) + [-1]


BAD = {
    "not utf-8": ("a.txt", b"fine\n\xff\xfe\n", ["a.txt, line 2", "not UTF-8", "byte 1"]),
    "not json": ("a.jsonl", b'{"text": "a b"}\n{nope\n', ["a.jsonl, line 2", "not JSON"]),
    "too many digits": ("a.jsonl", b'{"text": %s}\n' % (b"1" * 5000), ["line 1", "not JSON"]),
    "too deep": ("a.jsonl", b"[" * 100_000, ["line 1", "not JSON"]),
    "no text": ("a.jsonl", b'{"text": "a b"}\n{"prompt": "x"}\n', ["line 2", '"text"']),
    "text is no text": ("a.jsonl", b'{"text": 3}\n', ["line 1", '"text"']),
    "a list": ("a.jsonl", b"[1]\n", ["line 1", '"text"']),
    "empty": ("a.txt", b"", ["no two tokens", "a.txt"]),
    "one token": ("a.txt", b"x", ["no two tokens"]),
    "too large": ("a.txt", b"x" * 1001, ["spec.corpus_limit=1000", "a.txt"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused_by_name(tmp_path, case):
    name, content, words = BAD[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as error:
        read(tmp_path / name)
    for word in ["spec.corpus", *words]:
        assert word in str(error.value)


def test_a_corpus_of_exactly_the_limit_is_read(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "x" * 1000}))
    assert read(tmp_path / "a.jsonl").order.size == 999
