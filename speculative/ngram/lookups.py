"""Builds the lookup that a configuration asks for: own history, or that and a corpus, in torch or Triton.

Knows which implementations there are and nothing of how they search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from speculative.base import DraftHost
from speculative.ngram.corpus import read_corpus
from speculative.ngram.corpus_search import DeviceCorpus, TorchCorpus
from speculative.ngram.drafts import Found, Lookup, MatchOptions, merge
from speculative.ngram.history import TorchHistory
from speculative.ngram.notes import Notes, TorchNotes
from speculative.views import DraftView

if TYPE_CHECKING:
    from speculative.ngram.drafter import Ngram


@dataclass(frozen=True)
class Both:
    """The best of two lookups; of equally long matches the first one's."""

    first: Lookup
    second: Lookup

    def find(self, view: DraftView, branches: int, depth: int) -> Found:
        return merge(self.first.find(view, branches, depth), self.second.find(view, branches, depth))


def make_lookup(config: Ngram.Config, host: DraftHost) -> Lookup:
    """The lookup in a request's own tokens, and after it the corpus where there is one."""
    options = MatchOptions(config.min_match, config.max_match, config.continuation == "frequent")
    history = _history(options, host)
    if config.corpus is None:
        return history
    corpus = read_corpus(
        config.corpus_paths(), host.encode, max_match=config.max_match, limit=config.corpus_limit
    )
    return Both(history, _corpus(DeviceCorpus.of(corpus, host.device), options, host))


def make_notes(host: DraftHost) -> Notes:
    """What turns continuations into drafts, and remembers how good they were."""
    if host.kernels == "triton":
        from speculative.ngram.triton_lookups import TritonNotes  # decorates kernels

        return TritonNotes(host.early)
    return TorchNotes()


def _history(options: MatchOptions, host: DraftHost) -> Lookup:
    if host.kernels == "triton":
        from speculative.ngram.triton_lookups import TritonHistory  # decorates kernels

        return TritonHistory(options, host.vocab_size, host.early)
    return TorchHistory(options, host.vocab_size, host.context, host.device)


def _corpus(corpus: DeviceCorpus, options: MatchOptions, host: DraftHost) -> Lookup:
    if host.kernels == "triton":
        from speculative.ngram.triton_lookups import TritonCorpus  # decorates kernels

        return TritonCorpus(corpus, options, host.early)
    return TorchCorpus(corpus, options)
