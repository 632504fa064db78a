"""Longest-suffix match in a shared corpus in plain torch: the reference of kernels/ngram_corpus.py.

Retrieval as in REST (He et al. 2023, sec. 4.1): the corpus is sorted by context, and the places whose context
resembles a request's last tokens most lie around where that context would be sorted in. Nothing is read on
the host. Legend: B requests, K continuations, D tokens of each, M tokens of context, S neighbours, P probes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from speculative.ngram.corpus import BREAK, Corpus
from speculative.ngram.drafts import Found, MatchOptions
from speculative.views import DraftView

NEIGHBOURS = 16  # places looked at around the best one
_PROBES = 31  # compared at once: the search takes log32 of the corpus


@dataclass(frozen=True)
class DeviceCorpus:
    """Corpus.tokens int32 [N] and Corpus.order int32 [E] on the device."""

    tokens: Tensor
    order: Tensor

    @classmethod
    def of(cls, corpus: Corpus, device: torch.device) -> DeviceCorpus:
        return cls(torch.from_numpy(corpus.tokens).to(device), torch.from_numpy(corpus.order).to(device))


class TorchCorpus:
    """The lookup in the corpus: the places with the longest context of min_match..max_match tokens, up to S
    of them; the most common next token among them first, the earliest in the corpus' order of several."""

    def __init__(self, corpus: DeviceCorpus, options: MatchOptions) -> None:
        self._corpus = corpus
        self._options = options
        device = corpus.tokens.device
        self._back = torch.arange(options.max_match, device=device)
        self._probe = torch.arange(1, _PROBES + 1, device=device)
        self._near = torch.arange(NEIGHBOURS, device=device) - NEIGHBOURS // 2
        # lexicographic order as one number: the sign of the first difference outweighs all later ones
        self._weight = 2.0 ** torch.arange(options.max_match - 1, -1, -1, dtype=torch.float64, device=device)

    def find(self, view: DraftView, branches: int, depth: int) -> Found:
        length, end = self.neighbours(view)
        return choose(self._corpus.tokens, length, end, branches, depth)

    def neighbours(self, view: DraftView) -> tuple[Tensor, Tensor]:
        """(length int32 [B, S] tokens of context in common, 0 below min_match; end int64 [B, S] places)."""
        wanted = last_tokens(view, self._back)
        at = self._lower_bound(wanted).unsqueeze(1) + self._near
        inside = (at >= 0) & (at < self._corpus.order.numel())
        end = self._corpus.order[at.clamp(0, self._corpus.order.numel() - 1)].long()
        same = self._contexts(end) == wanted.unsqueeze(1)
        length = same.cumprod(2, dtype=torch.int32).sum(2, dtype=torch.int32)
        return length * (inside & (length >= self._options.min_match)), end

    def _lower_bound(self, wanted: Tensor) -> Tensor:
        """int64 [B]: how many places have a context that sorts before `wanted` int32 [B, M]. A search with P
        probes a round, whose rounds depend on the corpus' size alone."""
        places = self._corpus.order.numel()
        low = torch.zeros(wanted.shape[0], dtype=torch.int64, device=wanted.device)
        room = places
        while room > 0:
            step = -(-(room + 1) // (_PROBES + 1))
            at = low.unsqueeze(1) + self._probe * step - 1
            end = self._corpus.order[at.clamp_max(places - 1)].long()
            sign = (self._contexts(end) - wanted.unsqueeze(1)).sign().double() @ self._weight
            low = low + ((sign < 0) & (at < places)).sum(1) * step
            room = step - 1
        return low

    def _contexts(self, end: Tensor) -> Tensor:
        """int32 [B, n, M]: the tokens up to each place int64 [B, n], latest first."""
        return self._corpus.tokens[end.unsqueeze(2) - self._back]


def last_tokens(view: DraftView, back: Tensor) -> Tensor:
    """int32 [B, M]: the last known tokens of each request, latest first; -2 before the first one."""
    place = view.seq_lens.device.long().unsqueeze(1) - back
    tokens = view.tokens[view.rows.unsqueeze(1), place.clamp_min(0)]
    return torch.where(place >= 0, tokens, -2)


def choose(tokens: Tensor, length: Tensor, end: Tensor, branches: int, depth: int) -> Found:
    """Of S places the K continuations: longest context first, then the most common next token, then the
    first. Each starts with another token. A continuation ends where its document ends."""
    following = tokens[end + 1]
    same = following.unsqueeze(2) == following.unsqueeze(1)
    order = torch.arange(length.shape[1], 0, -1, device=length.device)
    score = length.long() * 2 * NEIGHBOURS * NEIGHBOURS
    lengths, picks = [], []
    for _ in range(branches):
        level = (score.unsqueeze(2) == score.unsqueeze(1)) & same
        votes = level.sum(2)
        key = (score + votes * NEIGHBOURS + order) * (score > 0)
        pick = key.argmax(1, keepdim=True)
        lengths.append(torch.where(score.gather(1, pick) > 0, length.gather(1, pick), 0))
        picks.append(pick)
        score = score * ~same.gather(1, pick.unsqueeze(2).expand(-1, -1, same.shape[2])).squeeze(1)
    index = torch.cat(picks, dim=1)
    matched = torch.cat(lengths, dim=1)
    return Found(matched, _read(tokens, end.gather(1, index), matched, depth))


def _read(tokens: Tensor, end: Tensor, length: Tensor, depth: int) -> Tensor:
    """int32 [B, K, D]: what follows each place up to the end of its document, -1 from there on."""
    place = end.unsqueeze(2) + torch.arange(1, depth + 1, device=end.device)
    found = tokens[place.clamp_max(tokens.numel() - 1)]
    going = (found != BREAK).cumprod(2) * (length > 0).unsqueeze(2)
    return torch.where(going > 0, found, BREAK)
