"""Builds the lookup that a configuration asks for: own history, corpus or both, in torch or Triton.

Knows which implementations there are and nothing of how they search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from speculative.base import DraftHost
from speculative.ngram.drafts import Lookup, MatchOptions
from speculative.ngram.history import TorchHistory

if TYPE_CHECKING:
    from speculative.ngram.drafter import Ngram


def make_lookup(config: Ngram.Config, host: DraftHost) -> Lookup:
    """The lookup in a request's own tokens, and after it the corpus where there is one."""
    options = MatchOptions(config.min_match, config.max_match, config.continuation == "frequent")
    return TorchHistory(options, host.vocab_size, host.context, host.device)
