"""The Triton lookups equal the torch ones, integer for integer; interpreted here, compiled on a GPU."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from test_history import VOCAB, texts_of, view_of

from engine.batch import SeqLens
from speculative.ngram.corpus import build_corpus, join
from speculative.ngram.corpus_search import DeviceCorpus, TorchCorpus
from speculative.ngram.drafts import MatchOptions
from speculative.ngram.history import TorchHistory
from speculative.ngram.triton_lookups import TritonCorpus, TritonHistory
from speculative.views import DraftView

CPU = torch.device("cpu")
CORNERS = [[], [5], [5, 5], [1, 2, 3, 1, 2], [1, 2, 3, 4], [7, 1, 2, 9, 8, 1, 2], [1, 2, 3] * 5]


def on(device: torch.device, view: DraftView) -> DraftView:
    lens = SeqLens(view.seq_lens.device.to(device), view.seq_lens.bound)
    return dataclasses.replace(view, tokens=view.tokens.to(device), rows=view.rows.to(device), seq_lens=lens)


def same(reference, kernel, view, branches, depth) -> None:
    expected, found = reference.find(view, branches, depth), kernel.find(view, branches, depth)
    assert found.length.tolist() == expected.length.tolist()
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert (found.length.dtype, found.tokens.dtype) == (torch.int32, torch.int32)


@pytest.mark.parametrize(
    ("options", "branches", "depth"),
    [
        (MatchOptions(2, 8), 1, 1),
        (MatchOptions(1, 3), 1, 7),
        (MatchOptions(2, 11), 3, 2),
        (MatchOptions(1, 2, True), 2, 3),
        (MatchOptions(3, 3, True), 1, 5),
    ],
)
def test_history(options, branches, depth):
    reference = TorchHistory(options, VOCAB, 200, CPU)
    kernel = TritonHistory(options, VOCAB)
    for texts in (CORNERS, texts_of(3, 3, 60, 3), []):
        same(reference, kernel, view_of(texts, slack=9), branches, depth)


def docs_of(seed: int, count: int, letters: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(letters) for _ in range(draw.randint(0, 40))] for _ in range(count)]


@pytest.mark.parametrize("lengths", [(1, 3), (2, 8)])
def test_corpus(lengths):
    options = MatchOptions(*lengths)
    for docs in ([[1, 2]], docs_of(1, 6, 3)):
        corpus = DeviceCorpus.of(build_corpus(join(docs, lengths[1]), lengths[1]), CPU)
        reference, kernel = TorchCorpus(corpus, options), TritonCorpus(corpus, options)
        for texts in (CORNERS, []):
            view = view_of(texts)
            for a, b in zip(reference.neighbours(view), kernel.neighbours(view), strict=True):
                assert a.tolist() == b.tolist()
            same(reference, kernel, view, 2, 3)


@pytest.mark.gpu
@pytest.mark.parametrize("frequent", [False, True])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 3), (2, 8), (3, 20)])
def test_history_on_a_gpu(lengths, frequent):
    cuda = torch.device("cuda")
    options = MatchOptions(*lengths, frequent)
    reference = TorchHistory(options, VOCAB, 5000, cuda)
    kernel = TritonHistory(options, VOCAB)
    for seed, (count, longest, letters) in enumerate([(7, 40, 2), (70, 300, 4), (9, 4500, 6), (0, 1, 1)]):
        view = on(cuda, view_of([*CORNERS, *texts_of(seed, count, longest, letters)][: count + 7], seed * 11))
        for branches, depth in ((1, 1), (1, 7), (3, 4)):
            same(reference, kernel, view, branches, depth)


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", [(1, 1), (2, 8), (3, 13)])
def test_corpus_on_a_gpu(lengths):
    cuda = torch.device("cuda")
    options = MatchOptions(*lengths)
    corpus = DeviceCorpus.of(build_corpus(join(docs_of(2, 900, 7), lengths[1]), lengths[1]), cuda)
    view = on(cuda, view_of([*CORNERS, *texts_of(5, 60, 90, 7)]))
    same(TorchCorpus(corpus, options), TritonCorpus(corpus, options), view, 3, 5)
