"""Longest-suffix match over a request's own tokens in plain torch: the reference of kernels/ngram_match.py.

Prompt lookup decoding (Saxena 2023); LLMA (Yang et al. 2023, sec. 3). Works on the device table; nothing is
read on the host, sizes come from the bounds.
Legend: B requests, K continuations, L positions looked at, M tokens of context compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from speculative.ngram.drafts import Found, MatchOptions
from speculative.views import DraftView

_WORD = 8  # comparisons that are read as one 64-bit integer


@dataclass(frozen=True)
class Matches:
    """length: int32 [B, K] tokens matched, 0 for none. end: int64 [B, K] position of the last of them, below
    the last known position; without a meaning where there is none."""

    length: Tensor
    end: Tensor


class Continuations:
    """Reads the tokens after a match. context: positions a row can hold."""

    def __init__(self, context: int, device: torch.device) -> None:
        self._step = torch.arange(context, device=device)

    def read(self, view: DraftView, matches: Matches, depth: int) -> Found:
        """The `depth` tokens after each match. Where the known tokens end, the continuation goes on in
        itself: a text that repeats with period p is continued with period p."""
        end = matches.end.unsqueeze(2)
        place = end + 1
        if depth > 1:
            period = view.seq_lens.device.view(-1, 1, 1) - end
            place = place + self._step[:depth] % period.clamp_min(1)
        tokens = view.tokens[view.rows.view(-1, 1, 1), place]
        return Found(matches.length, torch.where(matches.length.unsqueeze(2) > 0, tokens, -1))


class TorchHistory:
    """The lookup in the request's own tokens: the longest match of min_match..max_match tokens that is not
    the end itself; of several the last one, or the last with the most common next token. Each further
    continuation is the best one that starts with another token."""

    def __init__(self, options: MatchOptions, vocab_size: int, context: int, device: torch.device) -> None:
        self._options = options
        self._vocab = vocab_size
        self._position = torch.arange(1, context + 1, dtype=torch.int32, device=device)
        self._back = torch.arange(-(-options.max_match // _WORD) * _WORD, device=device)
        self._steps = [
            _thresholds(min(_WORD, options.max_match - first), device)
            for first in range(0, options.max_match, _WORD)
        ]
        self._continuations = Continuations(context, device)

    def find(self, view: DraftView, branches: int, depth: int) -> Found:
        return self._continuations.read(view, self.match(view, branches), depth)

    def match(self, view: DraftView, branches: int) -> Matches:
        """Where the last known tokens of each request occur before."""
        reach = max(1, view.seq_lens.max_bound)  # a match ends at 0 .. reach - 1
        position = self._position[:reach]  # of the token after it
        words, following = self._compared(view, reach)
        open_ = position <= view.seq_lens.device.unsqueeze(1)
        found: list[tuple[Tensor, Tensor]] = []
        for branch in range(branches):
            if branch:
                open_ = open_ & (following != following.gather(1, found[-1][1]))
            length, places = self._longest(words, open_)
            if self._options.frequent:
                places = _most_common(places, following, self._vocab)
            after = (places * position).amax(1, keepdim=True)  # 0: no place
            found.append((length, (after - 1).clamp_min(0).long()))
        if branches == 1:
            return Matches(*found[0])
        return Matches(torch.cat([n for n, _ in found], 1), torch.cat([end for _, end in found], 1))

    def _compared(self, view: DraftView, reach: int) -> tuple[list[Tensor], Tensor]:
        """(words, following). words: int64 [B, L], the latest 8 tokens of context first: byte 7 - j of the
        k-th is 1 where the token 8k + j before the match's end equals the one 8k + j before the last known,
        so that more is a longer match. following: int32 [B, L] the token after each place."""
        deep = self._back.numel()
        before = view.tokens.new_full((view.rows.numel(), deep - 1), -1)  # equals no token
        known = torch.cat((before, view.tokens[view.rows, : reach + 1]), dim=1)
        last = known.gather(1, view.seq_lens.device.unsqueeze(1) + self._back)  # [B, M]
        windows = known.unfold(1, deep, 1)[:, :reach]
        equal = torch.empty(windows.shape, dtype=torch.bool, device=known.device)  # contiguous, or no words
        torch.eq(windows, last.unsqueeze(1), out=equal)
        words = equal.view(torch.int64).unbind(2)
        return list(reversed(words)), known[:, deep:]

    def _longest(self, words: list[Tensor], open_: Tensor) -> tuple[Tensor, Tensor]:
        """(length int32 [B, 1], bool [B, L] the places that have it) among the open places; length 0, and
        places without a meaning, below min_match."""
        value = words[0] * open_
        steps = self._steps[0]
        length = run = (value.amax(1, keepdim=True) >= steps[1:]).sum(1, keepdim=True)
        places = value >= steps[run]
        for word, steps in zip(words[1:], self._steps[1:], strict=True):
            value = word * places
            run = (value.amax(1, keepdim=True) >= steps[1:]).sum(1, keepdim=True) * (run == _WORD)
            places = places & (value >= steps[run])
            length = length + run
        return (length * (length >= self._options.min_match)).int(), places


def _thresholds(count: int, device: torch.device) -> Tensor:
    """int64 [count + 1]: the least word with the latest k tokens equal."""
    words = [int.from_bytes(bytes(_WORD - k) + b"\x01" * k, "little") for k in range(count + 1)]
    return torch.tensor(words, device=device)


def _most_common(places: Tensor, following: Tensor, vocab_size: int) -> Tensor:
    """bool [B, L]: those of the places whose next token is the most common one among them. Ties all stay."""
    index = following.clamp_min(0).long()
    votes = torch.zeros(places.shape[0], vocab_size, dtype=torch.int32, device=places.device)
    votes.scatter_add_(1, index, places.int())
    count = votes.gather(1, index) * places
    return places & (count == count.amax(1, keepdim=True))
