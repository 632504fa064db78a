"""The lookups and the notes as Triton kernels. Same results as the torch ones, integer for integer.

Imports the kernels, so import it only once the way to run Triton is settled (backends.triton).
"""

from __future__ import annotations

from torch import Tensor

from engine.batch import DraftTree
from kernels.ngram_corpus import ngram_corpus
from kernels.ngram_match import ngram_match
from kernels.ngram_notes import ngram_streak, ngram_tree
from speculative.ngram.corpus_search import NEIGHBOURS, DeviceCorpus, choose
from speculative.ngram.drafts import Found, MatchOptions
from speculative.ngram.signal import FIRST, MOST, STREAK, STREAK_SHIFT
from speculative.views import DraftView


class TritonHistory:
    """`TorchHistory` in two launches a continuation."""

    def __init__(self, options: MatchOptions, vocab_size: int, early: bool = False) -> None:
        """early: as kernels.launch.dependent takes it."""
        self._options, self._early = options, early
        self._votes = vocab_size if options.frequent else None

    def find(self, view: DraftView, branches: int, depth: int) -> Found:
        length, tokens = ngram_match(
            view.tokens,
            view.rows,
            view.seq_lens.device,
            max(1, view.seq_lens.max_bound),
            min_match=self._options.min_match,
            max_match=self._options.max_match,
            branches=branches,
            depth=depth,
            vocab_size=self._votes,
            early=self._early,
        )
        return Found(length, tokens)


class TritonCorpus:
    """`TorchCorpus` with its search in one launch."""

    def __init__(self, corpus: DeviceCorpus, options: MatchOptions, early: bool = False) -> None:
        """early: as kernels.launch.dependent takes it."""
        self._corpus = corpus
        self._options, self._early = options, early

    def find(self, view: DraftView, branches: int, depth: int) -> Found:
        length, end = self.neighbours(view)
        return choose(self._corpus.tokens, length, end, branches, depth)

    def neighbours(self, view: DraftView) -> tuple[Tensor, Tensor]:
        """As TorchCorpus.neighbours."""
        return ngram_corpus(
            view.tokens,
            view.rows,
            view.seq_lens.device,
            self._corpus.tokens,
            self._corpus.order,
            min_match=self._options.min_match,
            max_match=self._options.max_match,
            neighbours=NEIGHBOURS,
            early=self._early,
        )


class TritonNotes:
    """`TorchNotes` in a launch each. early: as kernels.launch.dependent takes it."""

    def __init__(self, early: bool = False) -> None:
        self._early = early

    def drafted(self, view: DraftView, found: Found) -> DraftTree:
        first, streak = view.relay[FIRST], view.relay[STREAK]
        made = ngram_tree(
            view.root(), found.tokens, found.length, view.rows, first, streak, view.width, STREAK_SHIFT,
            early=self._early,
        )  # fmt: skip
        return DraftTree(*made)

    def came(self, view: DraftView, emitted: Tensor) -> None:
        first, streak = view.relay[FIRST], view.relay[STREAK]
        ngram_streak(emitted, view.rows, first, streak, MOST, early=self._early)
